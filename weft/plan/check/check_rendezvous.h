// Whether the plans of all ranks run to their end: the simulation (simulate/engine.h) without times.
#pragma once

#include <vector>

#include "weft/plan/check/check.h"
#include "weft/plan/rank_classes.h"

namespace weft {

// Adds a fault for a cycle of waits between ranks and lanes, with who waits for whom. The collectives of a group must
// match.
void check_rendezvous(const RankPlans& ranks, const RankClasses& classes, std::vector<PlanFault>& faults);

}  // namespace weft
