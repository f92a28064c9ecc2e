// Transfers: what travels between the stages of a pipeline.
//
// Contract. Adds, for every pass over a chunk that does not begin the model, a receive of its input (or, backward, of its
// output's gradient), and for every pass over a chunk that does not end it, a send. A send stands directly after the node
// that completes what it sends. A receive stands one pass ahead of the pass that needs it, so that it travels beside
// computation; in plans that evaluate, directly before that pass. Both sides of a transfer have the same match: a function of segment, micro-batch and direction. What leaves
// a rank has lanes of its own, for each direction, so that a rank never waits with a receive until its own send has found
// its peer.
#pragma once

#include "weft/model/module.h"
#include "weft/plan/orders/order.h"
#include "weft/plan/plan.h"

namespace weft {

// order: that of the plan's nodes.
Plan transfer(const Plan& plan, const Module& module, const PassOrder& order);

// By unit: the chunk that it belongs to.
std::vector<int> chunks_of_units(const Module& module);

}  // namespace weft
