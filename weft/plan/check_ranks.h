// The checker across ranks: rejects the plans of a run, naming nodes and ranks, before any of them runs.
//
// Ranks of one class share one plan, so 16,384 ranks cost as much as their few classes. Beside check_plan and
// check_memory for every class: two ranks of a group that do not issue the same collectives in the same order with
// matching kinds, sizes and rows; a gradient that is not summed over exactly the ranks that hold its parameter; rows that
// are exchanged by others than the ranks that hold different experts; ranks and lanes that wait for each other in a circle,
// through lanes, edges, memory and collectives.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "weft/grid/grid.h"
#include "weft/plan/check.h"
#include "weft/plan/memory.h"
#include "weft/plan/plan.h"

namespace weft {

struct RankPlans {
  struct Class {
    const Plan* plan = nullptr;
    const MemoryPlan* memory = nullptr;
  };
  std::vector<Class> classes;
  std::vector<std::int32_t> class_of;  // by rank
  // By name as plans use it ("ep", "dp", "edp"); every rank is in one group of each name.
  std::map<std::string, std::vector<RankGroup>> groups;
  // The groups that hold the same parameters: what their gradients are summed over.
  std::string dense_replicas = "dp", expert_replicas = "edp";
  std::string expert_ranks = "ep";  // hold different experts: what rows are exchanged over
};

// The groups that plans communicate over, of a grid with the axes dp, ep and edp.
std::map<std::string, std::vector<RankGroup>> groups_of(const Grid& grid);
// All ranks of the grid run this plan.
RankPlans same_on_all_ranks(const Grid& grid, const Plan& plan, const MemoryPlan& memory);

std::vector<PlanFault> check_ranks(const RankPlans& ranks);
void require_valid(const RankPlans& ranks);  // BugError listing the faults

// Equal for plans that do the same: nodes, uses, collectives, sizes and names. To find out whether ranks agree.
std::uint64_t digest_of(const Plan& plan);

}  // namespace weft
