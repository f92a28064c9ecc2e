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

}  // namespace weft
