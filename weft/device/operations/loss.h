// Token embedding and cross entropy: the two ends of a language model. The contracts that hold for every operation: weft/device/operations.h.
#pragma once

#include <cstdint>

#include "weft/device/operations/store.h"
#include "weft/device/tensor.h"

namespace weft {

// y[t] = weight[tokens[t]]; tokens i32 [T].
struct Embedding {
  Tensor tokens, weight, y;
};
// dweight[v] (+)= sum over t with tokens[t] == v of dy[t], in the order of t. Store::write zeroes the rest.
struct EmbeddingGradient {
  Tensor tokens, dy, dweight;
  Store store = Store::write;
};

// y[t] = x[t + by] where both are in one sequence of `length` (boundaries i32 [T], the token index at which the token's
// document begins: in one document), else fill; i32 [T]. y is not x's memory.
struct Shift {
  Tensor x, y, boundaries;
  std::int64_t by = 1;
  std::int32_t fill = 0;
  std::int64_t length = 0;
};

// For S rows of logits (f32 or f64) over the first `vocabulary` columns, labels i32 [S] (negative: not counted):
//   loss [1] (acc) (+)= scale[0] * sum of -log softmax(logits)[label]
//   dlogits [S, V] = scale[0] * (softmax - one_hot); zero for padding columns and uncounted rows; absent: loss only.
// dlogits may be the logits' memory when dtypes agree. row_losses: acc [S], -log p of each row (0 if uncounted).
struct CrossEntropy {
  Tensor logits, labels, scale, loss, dlogits, row_losses;
  std::int64_t vocabulary = 0;
  Store store = Store::write;
};

// The three operations of a vocabulary that is split over ranks: this one has rows `first` to first + `count` - 1 of it.
//
// y[t] = tokens[t] - first where that is a row of this rank, else -1; i32 [T]. y may be tokens' memory.
struct LocalTokens {
  Tensor tokens, y;
  std::int64_t first = 0, count = 0;
};
// What other ranks must know of S rows of logits, of which the first `vocabulary` columns count (there may be none):
//   statistics f64 [S, 3] = largest logit, sum of exp(logit - largest), the label's logit (0 where it is elsewhere)
// labels i32 [S], of the whole vocabulary.
struct VocabularyStatistics {
  Tensor logits, labels, statistics;
  std::int64_t first = 0, vocabulary = 0;
};
// CrossEntropy of a whole vocabulary, on a rank that has `vocabulary` columns of it from `first` on; statistics f64
// [ranks, S, 3], those of all ranks in their order. Every rank gets the same loss, and dlogits of its own columns.
struct SplitCrossEntropy {
  Tensor logits, labels, scale, statistics, loss, dlogits;
  std::int64_t first = 0, vocabulary = 0;
  Store store = Store::write;
};

}  // namespace weft
