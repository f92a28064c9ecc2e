// The communicators of one rank: one for every (group, lane) that a plan communicates on, so that no lane waits behind
// another.
#pragma once

#include <map>
#include <memory>

#include "weft/comm/world.h"
#include "weft/grid/grid.h"
#include "weft/plan/plan.h"

namespace weft {

class RankGroups {
 public:
  // Collective over all ranks of the grid: every rank makes the groups of the same plans in the same order.
  RankGroups(World& world, const Grid& grid);
  void add(const Plan& plan);
  Communicator& get(const std::string& group, Lane lane) const;
  World& world() const { return world_; }

 private:
  World& world_;
  Grid grid_;
  std::map<std::pair<std::string, Lane>, std::unique_ptr<Communicator>> groups_;
};

}  // namespace weft
