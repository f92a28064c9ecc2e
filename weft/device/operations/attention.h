// Rotary embedding and attention. The contracts that hold for every operation: weft/device/operations.h.
#pragma once

#include <cstdint>

#include "weft/device/tensor.h"

namespace weft {

enum class RotaryStyle : std::uint8_t { half_split, interleaved };  // i pairs with i + width/2, or 2i with 2i + 1
// Rotates the first `width` elements of every head of x [T, heads * head_dim] (rows may be strided) by the angles of
// its position; y may be x's memory. cosine, sine: acc [positions, width / 2].
// positions: i32 [T]; absent: token index mod length.
struct Rotary {
  Tensor x, y, cosine, sine, positions;
  std::int64_t heads = 1, head_dim = 0, width = 0, length = 0;
  RotaryStyle style = RotaryStyle::half_split;
  bool inverse = false;  // rotate back: the gradient
};

// Causal attention that never forms the full score matrix.
//   out_i = sum_j softmax_j(scale q_i . k_j) v_j  over 0 <= i - j (< window, if window > 0), same sequence
// q [T, heads * dim], k [T, kv_heads * dim], v [T, kv_heads * value_dim], out [T, heads * value_dim]; strided rows.
// Query head h uses kv head floor(h / (heads / kv_heads)). lse: acc [heads, T], log of the softmax's denominator.
// sinks: [heads], one more logit in the denominator, unscaled, without a value; may be absent.
// boundaries: i32 [T], the token index at which the token's document begins; absent: T = batch * length.
struct Attention {
  Tensor q, k, v, out, lse, sinks, boundaries;
  std::int64_t length = 0, heads = 1, kv_heads = 1, dim = 0, value_dim = 0, window = 0;
  double scale = 1;
};
// scratch: acc [heads, T]. dsinks: [heads] acc, absent without sinks (written, not added: the caller adds).
// repeatable: the same bits every time. Otherwise a device may add up parts of dq in the order they arrive.
struct AttentionBackward {
  Attention forward;
  Tensor dout, dq, dk, dv, dsinks, scratch;
  bool repeatable = true;
};

}  // namespace weft
