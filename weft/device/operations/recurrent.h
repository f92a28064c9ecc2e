// What recurrent layers (Mamba-2, gated delta net) are made of. The contracts that hold for every operation:
// weft/device/operations.h.
//
// Sequences: T = batch * length tokens; length 0: one sequence of all. boundaries: i32 [T], the token index at which
// the token's document begins; nothing flows from one document (or sequence) to the next. May be absent.
//
// Recurrences run in chunks of `chunk` tokens (a sequence's last one may be shorter): inside a chunk everything is a
// product of matrices, and only the state between chunks is passed on. Chunks are numbered sequence after sequence;
// chunks = batch * ceil(length / chunk). Forward keeps the state before every chunk, acc, and nothing else.
#pragma once

#include <cstdint>
#include <limits>

#include "weft/device/operations/store.h"
#include "weft/device/tensor.h"

namespace weft {

constexpr std::int64_t chunks_of(std::int64_t tokens, std::int64_t length, std::int64_t chunk) {
  if (length == 0) length = tokens;
  return length == 0 ? 0 : tokens / length * ((length + chunk - 1) / chunk);
}

// Causal depthwise convolution, channel c of token t, `taps` taps:
//   y[t, c] = act(bias[c] + sum over i of weight[c, i] * x[t - (taps - 1) + i, c])      act: silu, or none
// Tokens before the document count as zero. x, y [T, channels], strided rows; weight [channels, taps]; bias [channels],
// may be absent.
struct CausalConvolution {
  Tensor x, weight, bias, y, boundaries;
  std::int64_t length = 0;
  bool silu = true;
};
// dx [T, channels]; the sum before act is computed again. dx may not be x's or dy's memory.
struct CausalConvolutionBackward {
  CausalConvolution forward;  // without y
  Tensor dy, dx;
};
// dweight (+)= ..., dbias (+)= ... (absent without bias).
struct CausalConvolutionWeightGradient {
  CausalConvolution forward;  // without y
  Tensor dy, dweight, dbias;
  Store store = Store::write;
};

// Mamba-2. For head h, g = floor(h / (heads / groups)) its group, state H [dim, state] from 0:
//   d_t = clamp(softplus(dt_t + dt_bias), dt_least, dt_most);   a = -exp(A_log)
//   H_t = exp(d_t a) H_{t-1} + d_t x_t (outer) B_t;   y_t = H_t C_t + D x_t
// x, y [T, heads * dim], B, C [T, groups * state], dt [T, heads]: strided rows. A_log, dt_bias, D: acc [heads]; D may
// be absent. states: acc [chunks, heads * dim * state].
struct StateScan {
  Tensor x, B, C, dt, A_log, dt_bias, D, y, states, boundaries;
  std::int64_t length = 0, chunk = 128, heads = 1, groups = 1, dim = 0, state = 0;
  double dt_least = 0, dt_most = std::numeric_limits<double>::infinity();
};
// Gradients of all inputs; those of A_log, dt_bias and D (acc [heads]) by `store`. Scratch: dstates like states, sums
// acc [chunks, 3 * heads].
struct StateScanBackward {
  StateScan forward;  // without y
  Tensor dy, dx, dB, dC, ddt, dA_log, ddt_bias, dD, dstates, sums;
  Store store = Store::write;
};

// RMS norm with a gate, over `groups` parts of a row as in RmsNorm; weight [width] shared by the parts or [groups *
// width]. inverse: acc [rows * groups].
//   gate_first   u = x silu(z);   y = u * rsqrt(mean(u^2) + eps) * weight
//   otherwise    y = x * rsqrt(mean(x^2) + eps) * weight * silu(z)
// Where ranks divide the parts, x has a piece of each part, which has `whole` elements, and squares the sum of u^2 (or x^2) over
// all of them.
struct GatedNorm {
  Tensor x, z, weight, y, inverse;
  std::int64_t groups = 1;
  double eps = 1e-5;
  bool gate_first = true;
  std::int64_t whole = 0;  // 0: the parts are not divided
  Tensor squares = {};     // acc [rows, groups]
};
// dx and dz; they may be dy's memory (one of them). dweight (+)= sum over rows (and over parts, if the weight is shared).
struct GatedNormBackward {
  GatedNorm forward;  // without y and squares
  Tensor dy, dx, dz, dweight;
  Store store = Store::write;  // of dweight
  Tensor products =
      {};  // where ranks divide the parts: acc [rows, groups], the sum of dy weight x silu(z) over the whole part
};
// What ranks add up where they divide the parts. sums: acc [rows, groups], of a part's piece: of u^2 (or x^2); or, with dy, of
// dy weight x silu(z).
struct GatedNormSums {
  GatedNorm forward;  // without y, inverse and squares
  Tensor dy, sums;
};

// A row of x holds `groups` parts; each part: y = x * scale * rsqrt(sum(x^2) + eps).
struct L2Norm {
  Tensor x, y;
  std::int64_t groups = 1;
  double eps = 1e-6, scale = 1;
};
// dx, from x; it may be dy's memory.
struct L2NormBackward {
  L2Norm forward;  // without y
  Tensor dy, dx;
};

// Gated delta rule. For value head h, with key head floor(h / (heads / key_heads)), state S [dim, value_dim] from 0:
//   g_t = -exp(A_log) softplus(a_t + dt_bias);   beta_t = sigmoid(b_t)
//   S = exp(g_t) S;   S += k_t (outer) beta_t (v_t - S^T k_t);   y_t = S^T q_t
// q, k [T, key_heads * dim], v, y [T, heads * value_dim], a, b [T, heads]: strided rows. A_log, dt_bias: acc [heads].
// states: acc [chunks, heads * dim * value_dim].
// Inside a chunk the updates u_t = beta_t (v_t - S^T k_t) solve a triangular system, (I + A) U = beta (V - decayed K S):
// one triangular inverse per chunk and head; the rest are products.
struct DeltaRule {
  Tensor q, k, v, a, b, A_log, dt_bias, y, states, boundaries;
  std::int64_t length = 0, chunk = 64, heads = 1, key_heads = 1, dim = 0, value_dim = 0;
};
// Gradients of all inputs; those of A_log and dt_bias by `store`. Scratch: sums acc [chunks, 2 * heads].
struct DeltaRuleBackward {
  DeltaRule forward;  // without y
  Tensor dy, dq, dk, dv, da, db, dA_log, ddt_bias, sums;
  Store store = Store::write;
};

}  // namespace weft
