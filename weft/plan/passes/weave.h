// Weave: the exchange of one micro-batch runs while another computes.
//
// Contract. Takes a plan in the plain order and pairs the forward pass of micro-batch m with the backward pass of
// m - 1, unit by unit: forward unit k with backward unit n - 1 - k. Leftover units run alone, and so do the first
// forward and the last backward pass. Changes only the order of nodes: nodes, uses and contribution numbers stay the
// same, and on every communicating lane the order is the same function of the plan on every rank. In the steady state,
// primes for backward:
//
//   exchange:  combine'      | counts, dispatch                     | dispatch'        | combine
//   compute:   mix, route    | experts', shared' and their weights  | shared, experts  | route', mix'; next join';
//                                                                                      | weights; join
//
// so that every exchange has computation of the other micro-batch beside it. With `early_attention_backward`, route'
// and mix' come before the forward experts: attention's activations are freed before the experts need memory, and
// combine has only the next join' and the weights to hide behind.
#pragma once

#include "weft/plan/plan.h"

namespace weft {

Plan weave(const Plan& plan, bool early_attention_backward = false);

}  // namespace weft
