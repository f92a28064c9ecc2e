// Hides transfers among tensor ranks behind computation of the other micro-batch, where a plan is woven.
//
// Contract. Takes a plan with several micro-batches in flight (weave, or an order of stages) and changes only the order of the
// compute lane, and when transfers of the tensor lane begin: directly after the node before them in their own pass, forward or
// backward. Where a node would wait for a transfer that has just begun, the next node that needs nothing from there is put before
// it: one of another pass, or a weight gradient. No node passes another with which it shares a buffer that one of them writes, so
// no edge is turned round and no bit changes. What needs rows of tokens that have been sent just before stays where it is: the
// weave has put something before it to hide them.
#pragma once

#include "weft/plan/plan.h"

namespace weft {

Plan overlap_tensor(const Plan& plan);

}  // namespace weft
