// The communicators of one rank: one for every (group, lane) that a plan communicates on, so that no lane waits for
// another.
#pragma once

#include <map>
#include <memory>

#include "weft/comm/world.h"
#include "weft/grid/layout.h"
#include "weft/plan/plan.h"

namespace weft {

class RankGroups {
 public:
  // `add` is collective: the members of a group add the same plans in the same order.
  // device: whose memory the plans use.
  RankGroups(World& world, Device& device, const Layout& layout);
  void add(const Plan& plan);
  Communicator& get(GroupId group, Lane lane) const;
  std::vector<Communicator*> used_by(const Plan& plan) const;  // each once
  World& world() const { return world_; }
  const Layout& layout() const { return layout_; }

 private:
  World& world_;
  Device& device_;
  Layout layout_;
  std::map<std::pair<GroupId, Lane>, std::unique_ptr<Communicator>> groups_;
};

}  // namespace weft
