// Simulates the plans of all ranks as the parallel executor would run them. A lane runs its nodes in order; a node
// starts when its lane is free and the nodes it waits for are done. A collective starts when all ranks of its group
// have reached that call of that communicator, and ends for all of them at once; a transfer starts when both ranks have
// reached it. Consecutive transfers of one node over one group are posted together, and the node continues when all
// have ended.
//
// One rank per class is simulated (rank_classes.h). If the groups of a class are in different places, all are as slow
// as the slowest.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "weft/plan/rank_classes.h"
#include "weft/plan/simulate/cluster.h"

namespace weft {

struct ClassTimes {
  // Seconds, by node. A node that communicates starts when its rank is ready: its time includes waiting for others.
  std::vector<double> start, end;
  std::array<double, lane_count> busy{};  // seconds that the lane's nodes take
};

struct RankWait {
  RankId rank;
  NodeId node;
  std::string what;  // "waits for forward main.0*.mix@0, node 3"
};

struct Simulation {
  double seconds = 0;               // from the first start to the last end, over all ranks
  std::vector<ClassTimes> classes;  // empty where there are no costs
  // If nothing can proceed: who waits for whom, in a cycle, or up to a rank that has nothing left to do. Times of nodes
  // that never ran are 0.
  std::vector<RankWait> stuck;
};

// The collectives of a group must match, and peers must be members of their groups (check_ranks.h).
// cluster: null to find out only whether the run ends, without times.
Simulation simulate(const RankPlans& ranks, const RankClasses& classes, const Cluster* cluster);

}  // namespace weft
