// The indexer of sparse attention: it chooses the keys that a query sees, and learns to from attention itself.
#pragma once

#include "weft/device/operations/attention.h"
#include "weft/model/layers/rotary.h"

namespace weft {

// Parts of the layer's piece. backward and weight_gradient are present where the indexer has a loss; its gradients stay
// within the indexer.
struct IndexerParts {
  ValueId keys;  // i32 [T, K], K = min(topk, length)
  PieceCode forward, backward, weight_gradient;
  // Of several tensor ranks, before backward: p over the heads of this rank, and the sum over ranks.
  PieceCode means, sum_of_means;
};
// xn [T, H]: the layer's input after its norm, for the forward pass and for weight gradients; q_latent [T, rank]: the queries'
// latent after its norm; rope: the tables of the layer's rotary part; attention: what the layer computes over the keys, with
// `heads` on all ranks. Tensor ranks all have the whole indexer; each adds up the loss of its part of the queries.
struct IndexerInput {
  ValueId forward, weights;
  // Where the layer has rows of other ranks: W_kw xn, columns of another value, made with the weight of add_indexer_weight.
  ValueId product = {};
  std::int64_t column = 0;
};
// Of an indexer that does not learn: [d + n, hidden].
ValueId add_indexer_weight(ModuleBuilder& b, const IndexerSpec& spec);
IndexerParts add_indexer(ModuleBuilder& b, const IndexerSpec& spec, IndexerInput xn, ValueId q_latent,
                         const RotaryTables& rope, std::int64_t heads, std::function<Attention(const Run&)> attention);

}  // namespace weft
