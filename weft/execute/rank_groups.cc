#include "weft/execute/rank_groups.h"

#include <set>

#include "weft/base/error.h"

namespace weft {

RankGroups::RankGroups(World& world, Device& device, Members members)
    : world_(world), device_(device), members_(std::move(members)) {}

void RankGroups::add(const Plan& plan) {
  std::set<std::pair<std::string, Lane>> needed;  // ordered, so that all ranks make them alike
  for (const Node& node : plan.nodes)
    for (const NodeCollective& c : plan.collectives_of(node))
      needed.emplace(plan.groups[static_cast<std::size_t>(c.group)], node.lane);
  for (const auto& key : needed) {
    if (groups_.contains(key)) continue;
    const auto members = members_.find(key.first);
    WEFT_CHECK(members != members_.end(), "the plan communicates over '{}', which this rank has no group for",
               key.first);
    groups_[key] = world_.make_group(members->second, fmt::format("{}.{}", key.first, name_of(key.second)), &device_);
  }
}

Communicator& RankGroups::get(const std::string& group, Lane lane) const {
  const auto at = groups_.find({group, lane});
  WEFT_CHECK(at != groups_.end(), "no communicator for group {} on lane {}", group, name_of(lane));
  return *at->second;
}

}  // namespace weft
