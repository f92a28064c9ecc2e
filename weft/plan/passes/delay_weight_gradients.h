// Delayed weight gradients: what others wait for goes first.
//
// Contract. Moves every weight gradient (but those of experts, which hide the exchange behind their own backward) to
// the end of its unit's backward pass: the gradients of inputs, and the exchanges that wait for them, do not wait for
// weights. Changes only the order of compute nodes within a unit's pass; `add`s keep their numbers and their order.
// Runs before weave, which then finds weight gradients at the end of their slot.
#pragma once

#include "weft/plan/plan.h"

namespace weft {

Plan delay_weight_gradients(const Plan& plan);

}  // namespace weft
