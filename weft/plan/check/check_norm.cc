#include "weft/plan/check/check_norm.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "weft/plan/check/faults.h"

namespace weft {

namespace {

class NormGroups {
 public:
  NormGroups(const RankClasses& classes, std::size_t c, std::vector<PlanFault>& faults)
      : classes_(classes),
        c_(c),
        plan_(*classes.plan_of(c).plan),
        faults_(faults),
        same_(plan_.buffers.size()),
        sums_(plan_.buffers.size()) {
    for (std::size_t b = 0; b < same_.size(); ++b) same_[b] = plan_.value_of(buffer_id(b)).replicas;
    for (std::size_t i = 0; i < plan_.nodes.size(); ++i)
      for (const NodeCollective& made : plan_.collectives_of(plan_.nodes[i])) {
        if (made.kind == CollectiveKind::reduce_scatter) same_[made.receive.index()] = {};
        if (made.kind == CollectiveKind::all_reduce)
          sums_[made.receive.index()].push_back({made.group, made.first_row, made.end_row, node_id(i)});
      }
    for (const ValueInfo& whole : plan_.values)
      if (whole.storage == StorageClass::gathered) divided_[whole.tensor].push_back(whole.exchanged_over);
  }

  void run() {
    for (std::size_t i = 0; i < plan_.nodes.size(); ++i) {
      if (plan_.nodes[i].kind != NodeKind::sum_of_squares) continue;
      const auto uses = plan_.uses_of(plan_.nodes[i]);
      for (const BufferUse& use : uses.first(uses.size() - 1)) check(node_id(i), use.buffer, uses.back().buffer);
    }
  }

 private:
  struct Sum {  // of squares, over ranks
    GroupId over;
    std::int64_t first_row = 0, end_row = 0;  // end 0: after the last
    NodeId node;
  };

  // Ascending; only the rank itself if there is no such group.
  RankGroup members(GroupId group) const {
    if (!group.valid() || !classes_.has_group(group, c_)) return {classes_.first_rank(c_)};
    RankGroup ranks = classes_.group(group, c_);
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }
  struct Overlap {           // of two groups of the same rank
    bool others = false;     // they share more than that rank
    bool contained = false;  // all of the second is in the first
  };
  Overlap overlap(GroupId a, GroupId b) {
    const auto [at, is_new] = overlaps_.try_emplace({a, b});
    if (!is_new) return at->second;
    const RankGroup first = members(a), second = members(b);
    RankGroup both;
    std::set_intersection(first.begin(), first.end(), second.begin(), second.end(), std::back_inserter(both));
    return at->second = {both.size() > 1, both.size() == second.size()};
  }

  void check(NodeId norm, BufferId gradient, BufferId squares) {
    const ValueInfo& value = plan_.value_of(gradient);
    std::vector<Sum> sums = sums_[squares.index()];
    std::erase_if(sums, [&](const Sum& sum) {
      return sum.first_row > value.norm_row || (sum.end_row > 0 && sum.end_row <= value.norm_row);
    });
    const GroupId same = same_[gradient.index()];
    for (const Sum& sum : sums)
      if (overlap(sum.over, same).others)
        return fault({norm, sum.node},
                     fmt::format("{} is counted by {}, which hold the same elements, in the norm of "
                                 "all gradients, summed over '{}'",
                                 plan_.name_of(gradient), ranks_text(members(same)), plan_.name_of(sum.over)));
    const auto divided = divided_.find(value.tensor);
    if (divided == divided_.end()) return;
    for (const GroupId over : divided->second) {
      const auto counts_all = [&](const Sum& sum) { return overlap(sum.over, over).contained; };
      if (std::none_of(sums.begin(), sums.end(), counts_all))
        return fault({norm, sums.empty() ? NodeId{} : sums.back().node},
                     fmt::format("{} is divided over {}, but the norm of all gradients does not sum what each of them "
                                 "counts",
                                 plan_.name_of(gradient), ranks_text(members(over))));
    }
  }

  void fault(std::initializer_list<NodeId> nodes, std::string message) {
    PlanFault found;
    for (const NodeId node : nodes) {
      if (!node.valid()) continue;
      message += fmt::format("\n    rank {}, node {}: {}", classes_.first_rank(c_).value, node.value,
                             plan_.name_of(plan_.nodes[node.index()]));
      found.nodes.push_back(node);
      found.ranks.push_back(classes_.first_rank(c_));
    }
    found.message = std::move(message);
    faults_.push_back(std::move(found));
  }

  const RankClasses& classes_;
  const std::size_t c_;
  const Plan& plan_;
  std::vector<PlanFault>& faults_;
  std::vector<GroupId> same_;  // by buffer of a gradient: ranks that hold the same elements, once it is reduced
  std::vector<std::vector<Sum>> sums_;                // by buffer
  std::map<TensorId, std::vector<GroupId>> divided_;  // over which ranks
  std::map<std::pair<GroupId, GroupId>, Overlap> overlaps_;
};

}  // namespace

void check_norm(const Plan& plan, FaultList& faults) {
  std::vector<NodeId> counted(plan.buffers.size());
  NodeId norm;
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const Node& node = plan.nodes[i];
    if (node.kind != NodeKind::sum_of_squares) continue;
    norm = node_id(i);
    for (const BufferUse& use : plan.uses_of(node)) {
      if (use.access != Access::read) continue;
      NodeId& other = counted[use.buffer.index()];
      if (other.valid())
        faults.add({norm, other},
                   fmt::format("{} is counted twice in the norm of all gradients", plan.name_of(use.buffer)));
      other = norm;
    }
  }
  if (!norm.valid()) return;
  for (std::size_t i = 0; i < plan.buffers.size(); ++i)
    if (const ValueInfo& value = plan.value_of(buffer_id(i));
        value.storage == StorageClass::gradient && value.norm_row >= 0 && !counted[i].valid())
      faults.add({norm}, fmt::format("{} is not counted in the norm of all gradients", plan.name_of(buffer_id(i))));
}

void check_norm_groups(const RankClasses& classes, std::size_t c, std::vector<PlanFault>& faults) {
  NormGroups(classes, c, faults).run();
}

}  // namespace weft
