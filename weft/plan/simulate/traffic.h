// What a rank sends in a step.
#pragma once

#include <array>

#include "weft/grid/layout.h"
#include "weft/plan/plan.h"

namespace weft {

// Bytes by lane, on average. Collectives count as the rings and trees of cluster.h: of B bytes and n ranks, an all_reduce
// sends 2(n-1)/n B, a reduce_scatter and an all_to_all (n-1)/n B, an all_gather of parts of B bytes (n-1) B.
std::array<double, lane_count> traffic_of(const Plan& plan, const Layout& layout);

}  // namespace weft
