// The communicators of one rank: one for every (group, lane) that a plan communicates on, so that no lane waits behind
// another.
#pragma once

#include <map>
#include <memory>

#include "weft/comm/world.h"
#include "weft/plan/plan.h"

namespace weft {

class RankGroups {
 public:
  using Members = std::map<std::string, std::vector<RankId>>;  // of this rank's groups, by name

  // `add` is collective: every rank adds the same plans in the same order.
  // device: whose memory the plans use.
  RankGroups(World& world, Device& device, Members members);
  void add(const Plan& plan);
  Communicator& get(const std::string& group, Lane lane) const;
  World& world() const { return world_; }

 private:
  World& world_;
  Device& device_;
  Members members_;
  std::map<std::pair<std::string, Lane>, std::unique_ptr<Communicator>> groups_;
};

}  // namespace weft
