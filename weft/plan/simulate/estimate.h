// What a plan costs, before it runs.
#pragma once

#include <array>
#include <functional>
#include <span>

#include "weft/model/module.h"
#include "weft/plan/draw/timeline.h"
#include "weft/plan/memory.h"
#include "weft/plan/plan.h"
#include "weft/plan/rank_plans.h"
#include "weft/plan/simulate/cluster.h"

namespace weft {

struct PieceCost {
  double flops = 0, bytes = 0;  // bytes: memory traffic
};
// The cost of a node's arithmetic: a dry run on a device that counts (weft/execute/dry_run.h).
using Pricer = std::function<PieceCost(const Module&, const Plan&, const Node&)>;

// Fills flops and bytes of every node that computes; each (place, phase) is priced once.
void price(Plan& plan, const Module& module, const Pricer& pricer);
// Of the model: what is computed again does not count.
double total_flops(const Plan& plan);
double recomputed_flops(const Plan& plan);

struct ParameterCount {
  std::int64_t all = 0;
  std::int64_t active = 0;  // used by one token: k of the experts, without the embedding lookup
};
// Of the whole model: stages are its parts, one module of each, which holds experts / expert_ranks of its experts.
ParameterCount count_parameters(std::span<const Module* const> stages, std::int64_t experts, std::int64_t chosen,
                                std::int64_t expert_ranks);

// Of a step, over all ranks.
struct Estimate {
  Cluster cluster;
  double seconds = 0;  // from the first start to the last end
  Overlap all, exchange,
      tensor;  // of all communication, of the exchange lane's, of the tensor lane's: the average rank
  std::array<double, lane_count> busy{};  // seconds that nodes of each lane take: the average rank
};

// See engine.h for the rules. BugError if ranks wait for each other and none can proceed.
Estimate estimate_step(const RankPlans& ranks, const Cluster& cluster);
// The same, drawn: an event for every node of every rank.
Timeline estimate_timeline(const RankPlans& ranks, const Cluster& cluster);

}  // namespace weft
