#include "weft/grid/layout.h"

#include <algorithm>

#include "weft/base/error.h"

namespace weft {

namespace {

struct GroupAxes {
  std::string name;
  AxisNames axes;
};

const GroupAxes& axes_of(GroupId group) {
  static const std::vector<GroupAxes> all = {{"dp", {"dp"}}, {"ep", {"ep"}}, {"edp", {"edp"}}};
  WEFT_CHECK(group.valid() && group.index() < all.size(), "a layout has no group {}", group.value);
  return all[group.index()];
}

int as_size(std::int64_t ranks) { return static_cast<int>(ranks); }

}  // namespace

Layout::Layout() : Layout(of_data_and_experts(1, 1)) {}

Layout::Layout(const Grid& grid, RankId rank) : Layout(std::make_shared<const Grid>(grid), rank) {
  WEFT_CHECK(grid.contains(rank), "rank {} is not in the grid", rank.value);
}

Layout Layout::of_data_and_experts(std::int64_t ranks, std::int64_t expert_ranks, RankId rank) {
  if (ranks < 1 || expert_ranks < 1 || ranks % expert_ranks != 0)
    throw UserError("{} ranks cannot be divided into groups of {} that hold different experts", ranks, expert_ranks);
  return Layout(Grid({{"tp", 1}, {"cp", 1}, {"dp", as_size(ranks)}, {"pp", 1}},
                     {{"etp", 1}, {"ep", as_size(expert_ranks)}, {"edp", as_size(ranks / expert_ranks)}, {"pp", 1}}),
                rank);
}

const std::string& Layout::name_of(GroupId group) const { return axes_of(group).name; }

std::vector<std::string> Layout::group_names() const {
  std::vector<std::string> names;
  for (int id = 0; id < group_count; ++id) names.push_back(name_of(GroupId(id)));
  return names;
}

int Layout::size_of(GroupId group) const {
  int size = 1;
  for (const std::string& axis : axes_of(group).axes) size *= grid_->axis_size(axis);
  return size;
}

RankGroup Layout::members_of(GroupId group) const { return grid_->group_of(rank_, axes_of(group).axes); }

std::vector<RankGroup> Layout::all_groups(GroupId group) const { return grid_->groups(axes_of(group).axes); }

int Layout::position_in(GroupId group) const {
  const RankGroup members = members_of(group);
  for (std::size_t i = 0; i < members.size(); ++i)
    if (members[i] == rank_) return static_cast<int>(i);
  WEFT_CHECK(false, "rank {} is not in its own group '{}'", rank_.value, name_of(group));
}

GroupId Layout::spanned_by(std::span<const GroupId> groups) const {
  RankGroup reached{rank_};
  for (const GroupId group : groups) {
    RankGroup further;
    for (const RankId rank : reached)
      for (const RankId other : seen_from(rank).members_of(group)) further.push_back(other);
    reached = std::move(further);
  }
  if (reached.size() == 1) return {};
  std::sort(reached.begin(), reached.end());
  for (const GroupId group : groups)
    if (members_of(group) == reached) return group;
  for (int id = 0; id < group_count; ++id)
    if (members_of(GroupId(id)) == reached) return GroupId(id);
  WEFT_CHECK(false, "no group has the {} ranks that these groups reach", reached.size());
}

Layout::ExpertRange Layout::experts_at(int position, std::int64_t experts) const {
  const std::int64_t count = experts / size_of(expert_ranks());
  return {position * count, count};
}

int Layout::holder_of(std::int64_t expert, std::int64_t experts) const {
  return static_cast<int>(expert / (experts / size_of(expert_ranks())));
}

Placement Layout::placement_of(bool experts) const {
  Placement placement;
  if (experts && divides(expert_ranks())) {
    placement.splits = {{0, expert_ranks()}};
    if (divides(expert_replicas())) placement.replicas = expert_replicas();
  } else if (divides(data_ranks())) {
    placement.replicas = data_ranks();
  }
  return placement;
}

bool Layout::owns(const Placement& placement) const {
  return !placement.replicas.valid() || position_in(placement.replicas) == 0;
}

std::vector<RankId> Layout::owners() const {
  std::vector<RankId> owners;
  for (int r = 0; r < ranks(); ++r) {
    const Layout there = seen_from(RankId(r));
    if (there.owns(placement_of(false)) || there.owns(placement_of(true))) owners.emplace_back(r);
  }
  return owners;
}

int Layout::class_of(RankId rank) const { return grid_->coordinate(rank, "pp"); }

std::int64_t Layout::shard_of(std::int64_t index) const {
  return index * size_of(data_ranks()) + position_in(data_ranks());
}

bool Layout::operator==(const Layout& other) const {
  return rank_ == other.rank_ && grid_->axes() == other.grid_->axes() &&
         grid_->expert_axes() == other.grid_->expert_axes() && grid_->offset() == other.grid_->offset();
}

}  // namespace weft
