#include "weft/plan/check/check_rendezvous.h"

#include <fmt/format.h>

#include "weft/plan/simulate/engine.h"

namespace weft {

void check_rendezvous(const RankPlans& ranks, const RankClasses& classes, std::vector<PlanFault>& faults) {
  const Simulation run = simulate(ranks, classes, nullptr);
  if (run.stuck.empty()) return;
  PlanFault fault;
  fault.message = "ranks and lanes wait for each other, and none can proceed";
  for (const RankWait& wait : run.stuck) {
    const Plan& plan = *classes.plan_of(static_cast<std::size_t>(classes.class_of(wait.rank))).plan;
    fault.message += fmt::format("\n    rank {}, node {}: {} {}", wait.rank.value, wait.node.value,
                                 plan.name_of(plan.nodes[wait.node.index()]), wait.what);
    fault.nodes.push_back(wait.node);
    fault.ranks.push_back(wait.rank);
  }
  faults.push_back(std::move(fault));
}

}  // namespace weft
