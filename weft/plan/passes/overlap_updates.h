// Overlapped updates: they run beside the forward pass of the next step and, if nothing needs all gradients first,
// beside this step's backward pass.
//
// Contract. Moves the nodes that update weights to the update lane. With a gradient norm each of them must wait for all
// gradients: all are carried over to the next step. Without one (no clipping), a third of them, by bytes and evenly
// spread over the units, is carried over, since the forward pass is a third of a step. The others stay at the end of
// the list, in the order in which the backward pass finishes their units, and run as soon as edges allow. The node that
// computes update_values then moves to the update lane too, so that no update waits for the compute lane.
//
// Carried nodes are at the beginning of the list, in the order in which the forward pass reaches their units. When a
// step runs them, they do the work left by the previous step, with the gradients and numbers that it left. Nothing else
// changes: edges make a unit's forward pass wait for its update, and the first contribution to a gradient wait for the
// update that reads it. So results are the same. In the first step the finite flag in update_values is off, and carried
// updates do nothing. To read the weights between two steps, run the carried nodes alone (Session::flush_updates). Runs
// last.
#pragma once

#include "weft/plan/plan.h"

namespace weft {

Plan overlap_updates(const Plan& plan);

}  // namespace weft
