// Runs the plans of all ranks without doing their work, as the parallel executor would: a lane takes its nodes in order; a
// node starts when its lane is free and the nodes it waits for are done; a collective starts when all ranks of its group
// have come to that call of that communicator, and ends for all of them at once; a transfer starts when both ranks have
// come. Transfers of one node over one group that follow each other are posted together, and the node goes on when all of
// them have ended.
//
// One rank per class is simulated (rank_classes.h). Where ranks of a class have groups in different places, all go at the
// pace of the slowest.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "weft/plan/check/rank_classes.h"
#include "weft/plan/simulate/cluster.h"

namespace weft {

struct ClassTimes {
  // Seconds, by node. A node that communicates starts when its rank is ready for it: waiting for others is part of it.
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
  // Where nothing can go on: who waits for whom, in a circle, or up to a rank that has nothing left to do. Times of nodes
  // that never ran are 0.
  std::vector<RankWait> stuck;
};

// The collectives of a group must match, and peers must be members of their groups (check_ranks.h).
// cluster: null for a run without times, which finds out only whether it ends.
Simulation simulate(const RankPlans& ranks, const RankClasses& classes, const Cluster* cluster);

}  // namespace weft
