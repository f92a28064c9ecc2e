// The checker across ranks: rejects the plans of a run, naming nodes and ranks, before any of them runs.
//
// The cost depends on the number of classes (rank_classes.h), not of ranks: 16,384 ranks have a few. In addition to
// check_plan and check_memory for every plan, it finds:
// - two ranks of a group that do not issue the same collectives in the same order, with matching kinds, sizes and rows;
// - a send without its receive;
// - a collective over a group that its rank is not in, or of a size that does not fit its parts;
// - a gradient that is not summed over exactly the ranks that hold its parameter;
// - a norm of all gradients that counts an element twice, or leaves out what another rank holds of a divided tensor;
// - ranks and lanes that wait for each other in a cycle, through lanes, edges, memory and collectives.
#pragma once

#include <vector>

#include "weft/plan/check/check.h"
#include "weft/plan/rank_plans.h"

namespace weft {

std::vector<PlanFault> check_ranks(const RankPlans& ranks);
void require_valid(const RankPlans& ranks);  // BugError listing the faults

}  // namespace weft
