// Delayed weight gradients: input gradients, which other nodes wait for, go first.
//
// Contract. Moves weight gradients to the end of their unit's backward pass, so that input gradients, and what waits
// for them, do not wait for weights. Those before the unit's last exchange stay: they hide it. Changes only the order
// of compute nodes within a unit's pass; `add`s keep their numbers and their order. Runs before weave.
#pragma once

#include "weft/plan/plan.h"

namespace weft {

Plan delay_weight_gradients(const Plan& plan);

}  // namespace weft
