// The parts of an `E` layer: route -> [counts, dispatch ->] experts [-> combine] -> join, with `shared` in parallel.
// Brackets: only where experts are spread over ranks. Tensor ranks route different tokens, T of each: with sequence parallelism
// those that they have; without, each takes its part of them, and gathers follow the layer's forward and backward passes.
// T tokens, H hidden, k choices, E experts. W is the width of an
// expert's input and output: H, or that of latent experts, which read W_down norm(x) and whose sum goes through W_up.
#pragma once

#include "weft/device/operations/matmul.h"
#include "weft/model/layers/layers.h"

namespace weft {

// Output of route for a micro-batch: a row for every (token, choice), sorted by expert.
struct Routing {
  ValueId xn;                                // [T, H], input of the router and of the shared expert
  ValueId counts, offsets;                   // [E], [E + 1]
  ValueId row_of_slot, slot_of_row, in_use;  // [T, k copies], [R], [1]
  ValueId rows, row_weights;                 // [R, W], [R, 1]
  ValueId drows, drow_weights;               // their gradients, written by experts or by dispatch's backward
  ValueId out, dout;                         // [R, W]: the experts' results, and their gradient
  ValueId dxn_shared;                        // [T, H]: the shared expert's part of the gradient of xn
  std::int64_t R = 0;
  // Expert tensor ranks each get a row of a choice: so many rows. A rank's experts are numbered copies x their number here.
  std::int64_t copies = 1;
};

// The tokens that a rank routes: all that it has of the residual stream, or a part of them.
struct RoutedTokens {
  Range rows;
  bool are_all = true;
  Tensor of(const Tensor& stream) const { return are_all ? stream : stream.slice_rows(rows.first, rows.count); }
};
inline RoutedTokens routed_tokens(const ModuleBuilder& b) {
  const TensorRanks& ranks = b.tensor_ranks();
  if (ranks.sequence || !ranks.divide()) return {{0, b.stream_tokens()}, true};
  return {ranks.part_of(b.tokens()), false};
}

// Rows as this rank's experts see them: sorted by local expert. Without an exchange they are those of route.
struct ExpertRows {
  ValueId counts, offsets, in_use;  // [experts here], [experts here + 1], [1]
  ValueId rows, row_weights, drows, drow_weights, out, dout;
  std::int64_t R = 0, first_expert = 0, experts = 0;
  double in_use_share = 1;  // of the R rows, on average
  Groups groups(const Run& r) const { return {r[counts], r[offsets]}; }
};

inline std::int64_t row_width(const ModuleBuilder& b, const ExpertsSpec& spec) {
  return spec.latent > 0 ? spec.latent : b.config().hidden;
}

// experts_route.cc. dx: the gradient of x, of the tokens that are routed here.
void add_route(ModuleBuilder& b, const ExpertsSpec& spec, ValueId x, ValueId dx, ValueId dy, Routing& routing);
void add_expert_mlp(ModuleBuilder& b, const ExpertsSpec& spec, const ExpertRows& rows);  // experts_mlp.cc
// experts_shared.cc, experts_shared_split.cc: of several tensor ranks
ValueId add_shared_expert(ModuleBuilder& b, const ExpertsSpec& spec, const Routing& routing, ValueId dy);
ValueId add_split_shared_expert(ModuleBuilder& b, const ExpertsSpec& spec, const Routing& routing, ValueId dy);
// Adds dispatch and combine around add_expert_mlp; add_meanwhile adds what can run during the exchange.
void add_exchanged_experts(ModuleBuilder& b, const ExpertsSpec& spec, const Routing& routing,
                           const std::function<void()>& add_meanwhile);  // experts_exchange.cc

}  // namespace weft
