// Weave: the exchange of one micro-batch runs while another computes.
//
// Contract. Takes a plan in the plain order and pairs the forward pass of micro-batch m with the backward pass of m - 1,
// unit by unit: forward unit k with backward unit n - 1 - k; leftover units run alone, the first forward and the last
// backward pass too. Changes only the order of nodes: the same nodes, uses, contribution numbers, and on every lane that
// communicates an order that is the same function of the plan on every rank. In the steady state, primes for backward:
//
//   exchange:  combine'            | counts, dispatch                     | dispatch'        | combine
//   compute :  mix, route          | experts', shared' and their weights  | shared, experts  | route', mix'; next join';
//                                                                                            | weights; join
//
// so that every exchange has computation of the other micro-batch beside it. With `early_attention_backward` route' and
// mix' come before the forward experts: what attention kept is free before the experts need memory, and combine has the
// next join' and the weights alone to hide behind.
#pragma once

#include "weft/plan/plan.h"

namespace weft {

Plan weave(const Plan& plan, bool early_attention_backward = false);

}  // namespace weft
