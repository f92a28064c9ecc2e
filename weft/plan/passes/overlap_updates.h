// Updates out of the way: those of a step run beside the forward pass of the next.
//
// Contract. Moves the nodes that update weights to the beginning of the list, in the order in which the forward pass
// comes to their units, onto the update lane, and marks them as carried over: when a step runs them, they do what the
// step before has left, with the gradients and the numbers (update_values) that it left. Everything else stays as it is:
// edges make a unit's forward pass wait for its update, and the first contribution to a gradient for the update that
// reads it. So numbers are the same. The first step finds update_values that say "not finite", and its updates do
// nothing. Whoever wants the weights between two steps runs the carried nodes alone (Session::flush_updates). Runs last.
#pragma once

#include "weft/plan/plan.h"

namespace weft {

Plan overlap_updates(const Plan& plan);

}  // namespace weft
