#include "weft/execute/rank_groups.h"

#include <set>

#include "weft/base/error.h"

namespace weft {

RankGroups::RankGroups(World& world, Device& device, const Layout& layout)
    : world_(world), device_(device), layout_(layout) {}

namespace {

// Ordered, so that all ranks create them in the same order.
std::set<std::pair<GroupId, Lane>> needed_by(const Plan& plan) {
  std::set<std::pair<GroupId, Lane>> needed;
  for (const Node& node : plan.nodes)
    for (const NodeCollective& c : plan.collectives_of(node)) needed.emplace(c.group, node.lane);
  return needed;
}

}  // namespace

void RankGroups::add(const Plan& plan) {
  for (const auto& key : needed_by(plan)) {
    if (groups_.contains(key)) continue;
    groups_[key] = world_.make_group(layout_.members_of(key.first),
                                     fmt::format("{}.{}", layout_.name_of(key.first), name_of(key.second)), &device_);
  }
}

std::vector<Communicator*> RankGroups::used_by(const Plan& plan) const {
  std::vector<Communicator*> used;
  for (const auto& [group, lane] : needed_by(plan)) used.push_back(&get(group, lane));
  return used;
}

Communicator& RankGroups::get(GroupId group, Lane lane) const {
  const auto at = groups_.find({group, lane});
  WEFT_CHECK(at != groups_.end(), "no communicator for group {} on lane {}", layout_.name_of(group), name_of(lane));
  return *at->second;
}

}  // namespace weft
