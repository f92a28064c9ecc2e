// Updates out of the way: beside the forward pass of the next step and, where nothing needs all gradients first, beside
// this step's backward pass.
//
// Contract. Moves the nodes that update weights onto the update lane. With a gradient norm every one of them must wait for
// all gradients: all are carried over. Without one (no clipping), a third of them, by bytes and evenly spread over
// the units, is carried over, as the forward pass is a third of a step; the others stay at the end of the list, in the order
// in which the backward pass is done with their units, and run as soon as edges allow. The node that makes the numbers of
// updates (update_values) goes onto the lane with them then, so that none waits for the compute lane.
//
// Carried nodes stand at the beginning of the list, in the order in which the forward pass comes to their units: when a
// step runs them, they do what the step before has left, with the gradients and numbers that it left. Everything else stays
// as it is: edges make a unit's forward pass wait for its update, and the first contribution to a gradient for the update
// that reads it. So numbers are the same. The first step finds update_values that say "not finite", and its carried updates
// do nothing. Whoever wants the weights between two steps runs the carried nodes alone (Session::flush_updates). Runs last.
#pragma once

#include "weft/plan/plan.h"

namespace weft {

Plan overlap_updates(const Plan& plan);

}  // namespace weft
