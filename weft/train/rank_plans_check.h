// Before a plan runs, the plans of all ranks are checked together.
#pragma once

#include "weft/execute/prepared_plan.h"
#include "weft/execute/step_plan.h"
#include "weft/train/rank_exchange.h"

namespace weft {

// Called by all ranks. Ranks of one class (Layout::class_of) must have the same plan: their digests are compared. The
// first rank makes a plan for each other class and checks those of all ranks. BugError otherwise.
void check_plans_of_all_ranks(const PreparedPlan& prepared, const StepOptions& made_from, const RankExchange& ranks);

}  // namespace weft
