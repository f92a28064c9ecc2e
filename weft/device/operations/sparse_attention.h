// Attention over chosen keys, and the indexer that chooses them. The contracts that hold for every operation:
// weft/device/operations.h.
#pragma once

#include <cstdint>

#include "weft/device/operations/attention.h"
#include "weft/device/operations/store.h"
#include "weft/device/tensor.h"

namespace weft {

// An indexer scores key j for query i:   score_ij = scale * sum over its heads h of w_ih max(0, q_ih . k_j)
// q [T, heads * dim], k [T, dim], w [T, heads]; all of one dtype, rows may be strided.
struct Indexer {
  Tensor q, k, w;
  std::int64_t heads = 1, dim = 0;
  double scale = 1;
};

// Of the keys j <= i of its sequence, the K that score highest for query i; of equal ones the lower index; a score that
// is NaN counts as -infinity. keys: i32 [T, K], token indices in ascending order, -1 after the last where there are
// fewer. boundaries: i32 [T], the token index at which the token's document begins; absent: T = batch * length.
struct ChooseKeys {
  Indexer indexer;
  Tensor keys, boundaries;
  std::int64_t length = 0;
};

// As Attention, but query i sees the keys of its row of `keys` and no others. No window, no sinks; boundaries are those
// of the choice.
struct SparseAttention {
  Attention attention;
  Tensor keys;
};
// dk, dv [j]: added up over queries in their order. scratch: acc [heads, T].
struct SparseAttentionBackward {
  SparseAttention forward;
  Tensor dout, dq, dk, dv, scratch;
};

// means: acc [T, K], p_ij = sum over h of P_hij / heads over the chosen keys of query i, with P_h the attention's probabilities
// (from its lse); 0 after the last. heads: of all ranks that divide them.
struct AttentionMeans {
  SparseAttention attention;
  Tensor means;
  std::int64_t heads = 0;
};

// The indexer's loss: over the chosen keys of query i, with P_h the attention's probabilities (from its lse)
// and a the number of its heads,
//   p_ij = sum over h of P_hij / a        r_ij = softmax over j of score_ij
//   loss [1] (acc) (+)= factor * scale[0] * sum over i, j of p_ij log(p_ij / r_ij)
// and the gradients dq, dk, dw of that with respect to the indexer's q, k and w, written. scale: f64 [1] in device
// memory. scratch: acc [T, K + 1].
// Of `queries` from `first` on alone, where ranks divide them: dq and dw of the others are 0. Then p is given, [queries, K].
struct IndexerLoss {
  Indexer indexer;
  SparseAttention attention;
  Tensor scale, loss, dq, dk, dw, scratch;
  double factor = 1;
  Store store = Store::write;  // of the loss
  Tensor means = {};           // p; absent: of all queries, from the attention
  std::int64_t first = 0, queries = 0;
};

}  // namespace weft
