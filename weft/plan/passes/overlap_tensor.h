// Hides transfers among tensor ranks behind computation of the other micro-batch, where a plan is woven.
//
// Contract. Takes a plan with several micro-batches in flight (weave, or an order of stages) and changes only the order of the
// compute lane, and when transfers of the tensor lane begin: directly after the node before them in their own pass, forward or
// backward. Where a node would wait for a transfer that has just begun, the next node that needs nothing from there is put before
// it: one of another pass, or a weight gradient. No node passes another with which it shares a buffer that one of them writes, so
// no edge is turned round and no bit changes. What needs rows of tokens that have been sent just before stays where it is: the
// weave has put something before it to hide them. On stages of a pipeline a node comes no earlier than the passes before its own
// have begun: it may need what another stage sends.
#pragma once

#include <vector>

#include "weft/plan/plan.h"

namespace weft {

// unit_chunks: by unit, the chunk that it belongs to; empty: there is one stage.
Plan overlap_tensor(const Plan& plan, const std::vector<int>& unit_chunks = {});

}  // namespace weft
