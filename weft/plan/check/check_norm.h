// What the norm of all gradients counts.
#pragma once

#include <vector>

#include "weft/plan/check/check.h"
#include "weft/plan/rank_classes.h"

namespace weft {

// In the norm, no two ranks may count the same elements of a gradient, and all ranks that divide a tensor must count
// theirs: adds a fault for each gradient of that class of ranks where the squares are summed over other ranks.
void check_norm_groups(const RankClasses& classes, std::size_t c, std::vector<PlanFault>& faults);

}  // namespace weft
