// Expansion: from an order of passes over the model to nodes and buffers.
//
// Contract. Creates one node for every pass, piece and phase that both the piece and plans of this kind have: forward
// in the order of the pieces; backward in reverse, each piece's weight gradient right after its backward unless the
// order has a pass of its own for it; then the module's updates, once. Creates one buffer for every value of a
// micro-batch (or of a block of them, or of the step) that a node uses; scratch belongs to one node. Numbers
// contributions by micro-batch and consumer. Later passes may reorder nodes and insert others; they never renumber.
#pragma once

#include "weft/model/module.h"
#include "weft/plan/build.h"
#include "weft/plan/orders/order.h"
#include "weft/plan/plan.h"

namespace weft {

Plan expand(const Module& module, const PassOrder& order, const PlanOptions& options);

}  // namespace weft
