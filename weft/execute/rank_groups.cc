#include "weft/execute/rank_groups.h"

#include <cstdlib>

#include <fmt/format.h>

#include "weft/base/error.h"

namespace weft {

RankGroups::RankGroups(World& world, Device& device, const Layout& layout)
    : world_(world), device_(device), layout_(layout) {}

bool between_stages(Lane lane) {
  return lane == Lane::pipe_in || lane == Lane::pipe_out || lane == Lane::back_in || lane == Lane::back_out;
}

RankGroups::Key RankGroups::key_of(const Node& node, const NodeCollective& c) const {
  if (!between_stages(node.lane)) return {c.group, node.lane, 0};
  const int own = layout_.position_in(c.group), size = layout_.size_of(c.group);
  const bool sends = c.kind == CollectiveKind::send;
  const int sender = sends ? own : c.peer, receiver = sends ? c.peer : own;
  const bool closes_the_ring = size % 2 == 1 && size > 1 && std::abs(sender - receiver) == size - 1;
  return {c.group, meeting_lane(node.lane), closes_the_ring ? channels - 1 : sender % 2};
}

// Ordered, so that all ranks create them in the same order. All members of a group make all of its channels.
std::set<RankGroups::Key> RankGroups::needed_by(const Plan& plan) const {
  std::set<Key> needed;
  for (const Node& node : plan.nodes)
    for (const NodeCollective& c : plan.collectives_of(node)) {
      const Key key = key_of(node, c);
      if (!between_stages(node.lane)) {
        needed.insert(key);
        continue;
      }
      for (int channel = 0; channel < channels - (layout_.size_of(c.group) % 2 == 0 ? 1 : 0); ++channel)
        needed.insert({key.group, key.lane, channel});
    }
  return needed;
}

void RankGroups::add(const Plan& plan) {
  for (const Key& key : needed_by(plan)) {
    if (groups_.contains(key)) continue;
    std::string name = fmt::format("{}.{}", layout_.name_of(key.group), name_of(key.lane));
    if (between_stages(key.lane)) name += fmt::format(".{}", key.channel);
    groups_[key] = world_.make_group(layout_.members_of(key.group), name, &device_);
  }
}

std::vector<Communicator*> RankGroups::used_by(const Plan& plan) const {
  std::set<Communicator*> used;
  for (const Node& node : plan.nodes)
    for (const NodeCollective& c : plan.collectives_of(node)) used.insert(&get(node, c));
  return {used.begin(), used.end()};
}

Communicator& RankGroups::get(const Node& node, const NodeCollective& c) const {
  const auto at = groups_.find(key_of(node, c));
  WEFT_CHECK(at != groups_.end(), "no communicator for group {} on lane {}", layout_.name_of(c.group),
             name_of(node.lane));
  return *at->second;
}

}  // namespace weft
