#include "weft/grid/layout.h"

#include <algorithm>

#include "weft/base/error.h"

namespace weft {

namespace {

// Numbers of the groups in the table below.
enum : std::int32_t {
  dp,
  ep,
  edp,
  tp,
  cp,
  pp,
  dp_cp,
  tp_cp,
  stage_members,
  etp,
  etp_ep,
  instance,
  dp_cp_shard,
  edp_shard,
  stage_shard,
  ends,
  dp_cp_ends,
  cp_heads,
  cp_ring
};

struct GroupAxes {
  std::string name;
  AxisNames axes;
  bool ends = false;  // and the other one of the first and the last stage
};

const GroupAxes& axes_of(GroupId group) {
  static const std::vector<GroupAxes> all = {
      {"dp", {"dp", "instance"}},
      {"ep", {"ep"}},
      {"edp", {"edp", "instance"}},
      {"tp", {"tp"}},
      {"cp", {"cp_heads", "cp"}},
      {"pp", {"pp"}},
      {"dp_cp", {"cp_heads", "cp", "dp", "instance"}},
      {"tp_cp", {"tp", "cp_heads", "cp"}},
      {"stage", {"tp", "cp_heads", "cp", "dp", "instance"}},
      {"etp", {"etp"}},
      {"etp_ep", {"etp", "ep"}},
      {"instance", {"instance"}},
      {"dp_cp_shard", {"cp_heads", "cp", "dp"}},
      {"edp_shard", {"edp"}},
      {"stage_shard", {"tp", "cp_heads", "cp", "dp"}},
      {"ends", {"instance"}, true},
      {"dp_cp_ends", {"cp_heads", "cp", "dp", "instance"}, true},
      {"cp_heads", {"cp_heads"}},
      {"cp_ring", {"cp"}},
  };
  static_assert(Layout::group_count == cp_ring + 1);
  WEFT_CHECK(group.valid() && group.index() < all.size(), "a layout has no group {}", group.value);
  return all[group.index()];
}

bool is_of_experts(std::int32_t id) { return id == ep || id == edp || id == etp || id == etp_ep || id == edp_shard; }

int as_size(std::int64_t ranks) { return static_cast<int>(ranks); }

}  // namespace

Layout::Layout() : Layout(of({})) {}

Layout::Layout(const Grid& grid, RankId rank) : Layout(std::make_shared<const Grid>(grid), rank) {
  WEFT_CHECK(grid.contains(rank), "rank {} is not in the grid", rank.value);
}

Layout Layout::of(const LayoutSizes& s, RankId rank) {
  if (s.dp < 1 || s.instances < 1 || s.dp % s.instances != 0)
    throw UserError("{} data ranks cannot be divided into {} instances of the optimizer", s.dp, s.instances);
  const std::int64_t of_instance = s.tp * s.cp * s.dp / s.instances, parts = s.etp * s.ep;
  if (of_instance < 1 || parts < 1 || of_instance % parts != 0)
    throw UserError("{} ranks{} cannot be divided into groups of {} that hold different experts{}", of_instance,
                    s.instances > 1 ? " of an instance"
                    : s.pp > 1      ? " of a stage"
                                    : "",
                    parts, s.etp > 1 ? fmt::format(" ({} of each expert)", s.etp) : "");
  const Axis stages{"pp", as_size(s.pp)};
  if (s.cp_heads < 1 || s.cp % s.cp_heads != 0)
    throw UserError("{} context ranks cannot be divided into groups of {} that exchange heads", s.cp, s.cp_heads);
  std::vector<Axis> axes = {{"tp", as_size(s.tp)}};
  if (s.cp_heads > 1) axes.push_back({"cp_heads", as_size(s.cp_heads)});
  axes.push_back({"cp", as_size(s.cp / s.cp_heads)});
  if (s.stages_before_data) axes.push_back(stages);
  axes.insert(axes.end(), {{"dp", as_size(s.dp / s.instances)}, {"instance", as_size(s.instances)}});
  if (!s.stages_before_data) axes.push_back(stages);
  return Layout(Grid(axes, {{"etp", as_size(s.etp)},
                            {"ep", as_size(s.ep)},
                            {"edp", as_size(of_instance / parts)},
                            {"instance", as_size(s.instances)}}),
                rank);
}

Layout Layout::of_data_and_experts(std::int64_t ranks, std::int64_t expert_ranks, RankId rank) {
  return of({.dp = ranks, .ep = expert_ranks}, rank);
}

// Those of size above one, of the views that the grid has. All of the expert view's are written as the grid's own.
AxisNames Layout::divided(const AxisNames& axes) const {
  const auto dividing = [&](const AxisNames& names) {
    AxisNames found;
    for (const std::string& name : names)
      if (grid_->has_axis(name) && grid_->axis_size(name) > 1) found.push_back(name);
    return found;
  };
  AxisNames found = dividing(axes);
  const AxisNames experts = dividing({"etp", "ep", "edp"});
  const auto has = [&](const std::string& name) { return std::find(found.begin(), found.end(), name) != found.end(); };
  if (!experts.empty() && std::all_of(experts.begin(), experts.end(), has)) {
    std::erase_if(found, [&](const std::string& name) {
      return std::find(experts.begin(), experts.end(), name) != experts.end();
    });
    const AxisNames own = dividing({"tp", "cp_heads", "cp", "dp"});
    found.insert(found.end(), own.begin(), own.end());
  }
  std::sort(found.begin(), found.end());
  return found;
}

// The first group that has the same ranks, by its axes, and rather one of the grid's own than one of the expert view;
// itself where it is one rank.
GroupId Layout::first_like(GroupId group) const {
  const AxisNames wanted = divided(axes_of(group).axes);
  const auto at_ends = [&](GroupId id) { return axes_of(id).ends && stage_count() > 1; };
  if (wanted.empty() && !at_ends(group)) return group;
  for (const bool of_experts : {false, true})
    for (int id = 0; id < group_count; ++id)
      if (of_experts == is_of_experts(id) && at_ends(GroupId(id)) == at_ends(group) &&
          divided(axes_of(GroupId(id)).axes) == wanted)
        return GroupId(id);
  return group;
}

GroupId Layout::data_ranks() const { return GroupId(dp); }
GroupId Layout::context_ranks() const { return GroupId(cp); }
GroupId Layout::head_ranks() const { return GroupId(cp_heads); }
GroupId Layout::ring_ranks() const { return GroupId(cp_ring); }
GroupId Layout::tensor_ranks() const { return GroupId(tp); }
GroupId Layout::stages() const { return GroupId(pp); }
GroupId Layout::batch_ranks() const { return first_like(GroupId(dp_cp)); }
GroupId Layout::sample_ranks() const { return first_like(GroupId(tp_cp)); }
GroupId Layout::stage_ranks() const { return first_like(GroupId(stage_members)); }
GroupId Layout::expert_ranks() const { return GroupId(ep); }
GroupId Layout::expert_tensor_ranks() const { return GroupId(etp); }
GroupId Layout::expert_parts() const { return size_of(GroupId(etp)) == 1 ? GroupId(ep) : GroupId(etp_ep); }
GroupId Layout::expert_replicas() const { return first_like(GroupId(edp)); }
GroupId Layout::instances() const { return GroupId(instance); }
GroupId Layout::embedding_stages() const { return first_like(GroupId(ends)); }

GroupId Layout::both_ends() const { return stage_count() > 1 ? first_like(GroupId(dp_cp_ends)) : GroupId{}; }

Layout::ShardGroups Layout::shards_of(GroupId replicas) const {
  const auto split = [&](std::int32_t inner, std::int32_t outer) {
    const GroupId groups[] = {first_like(GroupId(inner)), first_like(GroupId(outer))};
    return ShardGroups{divides(groups[0]) ? groups[0] : GroupId{}, divides(groups[1]) ? groups[1] : GroupId{}};
  };
  if (replicas == first_like(GroupId(dp_cp))) return split(dp_cp_shard, instance);
  if (replicas == first_like(GroupId(edp))) return split(edp_shard, instance);
  if (replicas == first_like(GroupId(stage_members))) return split(stage_shard, instance);
  if (replicas == first_like(GroupId(dp_cp_ends))) return split(dp_cp_shard, ends);
  WEFT_CHECK(false, "nothing is replicated over '{}'", name_of(replicas));
}

const std::string& Layout::name_of(GroupId group) const { return axes_of(group).name; }

std::vector<std::string> Layout::group_names() const {
  std::vector<std::string> names;
  for (int id = 0; id < group_count; ++id) names.push_back(name_of(GroupId(id)));
  return names;
}

int Layout::size_of(GroupId group) const {
  int size = axes_of(group).ends ? std::min(2, stage_count()) : 1;
  for (const std::string& axis : axes_in_grid(group)) size *= grid_->axis_size(axis);
  return size;
}

bool Layout::on_an_end(RankId rank) const {
  const int stage = grid_->coordinate(rank, "pp");
  return stage == 0 || stage == stage_count() - 1;
}

AxisNames Layout::axes_in_grid(GroupId group) const {
  AxisNames axes;
  for (const std::string& axis : axes_of(group).axes)
    if (grid_->has_axis(axis)) axes.push_back(axis);
  return axes;
}

RankGroup Layout::members_of(GroupId group) const {
  AxisNames axes = axes_in_grid(group);
  if (axes_of(group).ends) {
    if (!on_an_end(rank_)) return {rank_};
    axes.emplace_back("pp");
  }
  if (axes.empty()) return {rank_};
  RankGroup members = grid_->group_of(rank_, axes);
  if (axes_of(group).ends) std::erase_if(members, [&](RankId rank) { return !on_an_end(rank); });
  return members;
}

std::vector<RankGroup> Layout::all_groups(GroupId group) const {
  AxisNames axes = axes_in_grid(group);
  const bool at_ends = axes_of(group).ends;
  if (at_ends) axes.emplace_back("pp");
  std::vector<RankGroup> groups;
  if (axes.empty())
    for (int r = 0; r < ranks(); ++r) groups.push_back({RankId(grid_->offset() + r)});
  else
    groups = grid_->groups(axes);
  if (at_ends)
    for (RankGroup& members : groups) std::erase_if(members, [&](RankId rank) { return !on_an_end(rank); });
  return groups;
}

int Layout::position_in(GroupId group) const {
  const RankGroup members = members_of(group);
  const auto at = std::find(members.begin(), members.end(), rank_);
  WEFT_CHECK(at != members.end(), "rank {} is not in its own group '{}'", rank_.value, name_of(group));
  return static_cast<int>(at - members.begin());
}

GroupId Layout::spanned_by(std::span<const GroupId> groups) const {
  AxisNames all;
  bool at_ends = false;
  for (const GroupId group : groups) {
    all.insert(all.end(), axes_of(group).axes.begin(), axes_of(group).axes.end());
    at_ends |= axes_of(group).ends && stage_count() > 1;
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  const AxisNames wanted = divided(all);
  if (wanted.empty() && !at_ends) return {};
  const auto fits = [&](GroupId id) {
    return (axes_of(id).ends && stage_count() > 1) == at_ends && divided(axes_of(id).axes) == wanted;
  };
  for (const GroupId group : groups)
    if (fits(group)) return group;
  for (int id = 0; id < group_count; ++id)
    if (fits(GroupId(id))) return GroupId(id);
  WEFT_CHECK(false, "no group has all ranks that {} groups reach", groups.size());
}

Layout::ExpertRange Layout::experts_at(int position, std::int64_t experts) const {
  const std::int64_t count = experts / size_of(expert_ranks());
  return {position * count, count};
}

int Layout::holder_of(std::int64_t expert, std::int64_t experts) const {
  return static_cast<int>(expert / (experts / size_of(expert_ranks())));
}

Placement Layout::placement_of(const TensorKind& kind) const {
  Placement placement;
  const auto divide = [&](int dim, GroupId over) {
    if (!divides(over)) return false;
    placement.splits.push_back({dim, over});
    return true;
  };
  GroupId replicas;
  if (kind.experts) {
    divide(0, expert_ranks());
    if (kind.tensor_dim >= 0) divide(kind.tensor_dim, expert_tensor_ranks());
    WEFT_CHECK(kind.tensor_dim >= 0 || !divides(expert_tensor_ranks()),
               "experts that expert tensor ranks do not divide");
    replicas = expert_replicas();
  } else {
    const bool split = kind.tensor_dim >= 0 && divide(kind.tensor_dim, tensor_ranks());
    WEFT_CHECK(!kind.on_both_ends || split || !divides(tensor_ranks()), "an embedding that tensor ranks do not divide");
    replicas = kind.on_both_ends ? first_like(GroupId(dp_cp_ends)) : split ? batch_ranks() : stage_ranks();
  }
  if (divides(replicas)) placement.replicas = replicas;
  return placement;
}

bool Layout::owns(const Placement& placement) const {
  return !placement.replicas.valid() || position_in(placement.replicas) == 0;
}

std::vector<RankId> Layout::owners() const {
  std::vector<RankId> owners;
  for (int r = 0; r < ranks(); ++r) {
    const Layout there = seen_from(RankId(grid_->offset() + r));
    const auto owns_some = [&](const TensorKind& kind) { return there.owns(there.placement_of(kind)); };
    if (owns_some({}) || owns_some({.tensor_dim = 0}) || owns_some({.experts = true, .tensor_dim = 1}))
      owners.push_back(there.rank());
  }
  return owners;
}

int Layout::class_of(RankId rank) const {
  return grid_->coordinate(rank, "pp") * size_of(context_ranks()) + seen_from(rank).position_in(context_ranks());
}

std::int64_t Layout::shard_of(std::int64_t index) const {
  return index * size_of(data_ranks()) + position_in(data_ranks());
}

bool Layout::operator==(const Layout& other) const {
  return rank_ == other.rank_ && grid_->axes() == other.grid_->axes() &&
         grid_->expert_axes() == other.grid_->expert_axes() && grid_->offset() == other.grid_->offset();
}

}  // namespace weft
