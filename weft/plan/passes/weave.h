// Weave: the exchange of one micro-batch runs while another computes.
//
// Contract. Takes an expanded plan and an order that pairs forward passes with backward passes, those of micro-batches m
// and m - 1 where there is one stage. It brings the plan into that order and runs each pair unit by unit: forward unit k
// with backward unit n - 1 - k. Leftover units run alone, and so do passes that are not paired. Weight gradients that
// have passes of their own keep them, but within pairs they hide exchanges. With `weights_after_passes`, a backward pass that
// runs alone ends with its weight gradients, except those that hide its exchanges. Changes only the order of nodes: nodes, uses
// and contribution numbers stay the same, and on every communicating lane the order is the same function of the plan on
// every rank. In the steady state, primes for backward:
//
//   exchange:  combine'      | counts, dispatch                     | dispatch'        | combine
//   compute:   mix, route    | experts', shared' and their weights  | shared, experts  | route', mix'; next join';
//                                                                                      | weights; join
//
// so that every exchange has computation of the other micro-batch beside it. With `early_attention_backward`, route'
// and mix' come before the forward experts: attention's activations are freed before the experts need memory, and
// combine has only the next join' and the weights to hide behind.
#pragma once

#include "weft/plan/orders/order.h"
#include "weft/plan/plan.h"

namespace weft {

struct WeaveOptions {
  bool early_attention_backward = false;
  bool weights_after_passes = false;
};

// unit_chunks: by unit, the chunk that it belongs to.
Plan weave(const Plan& plan, const PassOrder& order, const std::vector<int>& unit_chunks, const WeaveOptions& options);

}  // namespace weft
