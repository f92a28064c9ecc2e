// Experts' backward dispatch beside their weight gradients: gradients of tokens go back to their ranks first.
//
// Contract. In each unit's backward pass, an exchange goes directly after the last compute node that it depends on. So
// the backward dispatch is queued before the weight gradients of the experts and before all of the shared expert, which
// run while it travels. Changes only the order of nodes within a unit's pass: every lane keeps the order of its own
// nodes, and `add`s keep their numbers. Runs after delay_weight_gradients, which leaves the experts' weight gradients
// before the dispatch. Not for woven plans, in which the other micro-batch hides the exchange.
#pragma once

#include "weft/plan/plan.h"

namespace weft {

Plan overlap_dispatch_backward(const Plan& plan);

}  // namespace weft
