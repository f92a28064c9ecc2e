// The one table of operations. cpu/ and cuda/ fill it; null/ counts what it is asked.
//
// Contracts, made for a GPU:
// - an operation never hands a size or a value back to the host: counts, offsets, scalars that change between steps
//   (learning rate, clip factor, ...) are read from device memory. Arguments hold only what is fixed for a plan;
// - an operation allocates nothing: scratch memory is an argument;
// - results do not depend on timing: sums have a fixed order;
// - rows of a routed tensor beyond the count in use are neither read nor written;
// - "acc" below is double for double tensors and float for float and bfloat16 ones. Inside, everything is added up in
//   acc and rounded once when stored;
// - optional tensors are absent when default-made (Tensor::given());
// - token index = batch * length + position.
#pragma once

#include <cstdint>
#include <span>

#include "weft/device/tensor.h"

namespace weft {

// Whether a result replaces what is there or is added to it.
enum class Store : std::uint8_t { write, add };
enum class Transposed : std::uint8_t { no, yes };

// c [m, n] (+)= op(a) op(b) (+ bias [n] on every row) (+ residual [m, n]).   op(a) is [m, k], op(b) is [k, n].
// a, b: any of f32, f64, bf16 (they may differ); c: f32, f64 or bf16; strided rows allowed.
struct Matmul {
  Tensor a, b, c;
  Transposed transpose_a = Transposed::no, transpose_b = Transposed::no;
  Store store = Store::write;
  Tensor bias;
  Tensor residual;  // of c's dtype; only with Store::write
};

// Rows of a tensor in groups, one an expert: group g holds rows offsets[g] .. offsets[g] + counts[g] - 1.
// Both are i32 in device memory. offsets [groups + 1] may be aligned, so rows between a group's end and the next
// group's start are padding: zero in every input, ignored in every output.
struct Groups {
  Tensor counts;   // [groups]
  Tensor offsets;  // [groups + 1]
};

// For every group g, x [R, k], w [G, n, k], y [R, n]:
//   forward          y_g = x_g w_g^T (+ bias [G, n])
//   input_gradient   x_g = y_g w_g
//   weight_gradient  w_g (+)= y_g^T x_g      (an empty group writes zeros, or adds nothing)
struct GroupedMatmul {
  enum class Mode : std::uint8_t { forward, input_gradient, weight_gradient };
  Mode mode = Mode::forward;
  Tensor x, w, y;
  Groups groups;
  Store store = Store::write;  // weight_gradient only
  Tensor bias;                 // forward only
};

// y (+)= sum over rows of x [R, n] -> [n]; rows_in_use: i32 [1], absent: all.
struct ColumnSum {
  Tensor x, y;
  Store store = Store::write;
  Tensor rows_in_use;
};
// For every group: y [G, n] (+)= column sum of x_g.
struct GroupedColumnSum {
  Tensor x, y;
  Groups groups;
  Store store = Store::write;
};

// A row of x holds `groups` parts of `width` elements; each part is normalised by itself:
//   inverse = rsqrt(mean(x^2) + eps);   y = x * inverse * weight        (zero_centred: * (1 + weight))
// weight: [width] shared by the parts, or [groups * width]. inverse: acc [rows * groups], may be absent.
struct RmsNorm {
  Tensor x, weight, y, inverse;
  std::int64_t groups = 1;
  double eps = 1e-5;
  bool zero_centred = false;
};
// dx = (residual +) gradient of x. residual: [rows, columns], may be absent. dx may be dy's or residual's memory.
struct RmsNormBackward {
  Tensor x, weight, inverse, dy, dx, residual;
  std::int64_t groups = 1;
  bool zero_centred = false;
};
// dweight (+)= sum over rows (and over parts, if the weight is shared) of dy * x * inverse.
struct RmsNormWeightGradient {
  Tensor x, inverse, dy, dweight;
  std::int64_t groups = 1;
  Store store = Store::write;
};

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

// Causal attention, never a full score matrix.
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
struct AttentionBackward {
  Attention forward;
  Tensor dout, dq, dk, dv, dsinks, scratch;
};

enum class ActivationKind : std::uint8_t { swiglu, squared_relu, gelu, gelu_erf, clamped_swiglu, quick_geglu };
// What an activation is; one definition for every kernel that applies it.
//   swiglu        silu(g) u                       gelu          tanh form      gelu_erf  exact
//   squared_relu  max(x, 0)^2                     clamped_*     g = min(g, limit), u = clamp(u, -limit, limit)
//   quick_geglu   g sigmoid(alpha g) (u + offset), clamped the same way
struct ActivationSpec {
  ActivationKind kind = ActivationKind::swiglu;
  double limit = 0, alpha = 1.702, offset = 0;  // limit 0: none
  bool gated() const {
    return kind == ActivationKind::swiglu || kind == ActivationKind::clamped_swiglu ||
           kind == ActivationKind::quick_geglu;
  }
};
// y [R, f] = act(x) * scale [R];  gated: x [R, 2 f] = [g | u], else x [R, f]. scale: acc, may be absent.
struct Activation {
  ActivationSpec spec;
  Tensor x, y, scale, rows_in_use;
};
// dx [like x], and where scale is given dscale [R] = sum over f of dy * act(x).
struct ActivationBackward {
  ActivationSpec spec;
  Tensor x, scale, dy, dx, dscale, rows_in_use;
};

// Chooses k of E experts for every token. All tensors acc (or i32): logits [T, E], scores [T, E], weights [T, k],
// indices i32 [T, k] in the order of choice (best first; ties: lower index).
//   softmax, choose_first    choice by logits; weight = softmax over the k chosen
//   softmax, otherwise       scores = softmax over all; choice by scores; weight = score (/ sum of the k, if normalise)
//   sigmoid                  scores = sigmoid; choice by score + bias [E]; weight = score (/ (sum + 1e-20), if
//   normalise)
// then weight *= scaling. groups > 1: a group's score is the sum of its group_best best choices' scores; only the
// keep_groups best groups take part.
struct RouterSpec {
  enum class Score : std::uint8_t { softmax, sigmoid } score = Score::softmax;
  bool choose_first = true, normalise = false;
  double scaling = 1;
  std::int64_t k = 1, groups = 1, keep_groups = 1, group_best = 2;
};
struct Router {
  RouterSpec spec;
  Tensor logits, bias, scores, weights, indices;  // scores: softmax over all, or sigmoid: what backward and losses need
};
// dlogits [T, E] (+)= gradient, from dweights [T, k].
struct RouterBackward {
  RouterSpec spec;
  Tensor scores, weights, indices, dweights, dlogits;
  Store store = Store::write;
};

// Sorts the T * k (token, choice) slots by expert, stably: a row each.
//   counts [E], offsets [E + 1] (each a multiple of `alignment`), row_of_slot [T, k] (-1 where the slot has no row),
//   slot_of_row [R] (-1 for padding rows). All i32. An index of -1 makes no row. rows_in_use [1]: offsets[E].
struct RouteRows {
  Tensor indices, counts, offsets, row_of_slot, slot_of_row, rows_in_use;
  std::int64_t alignment = 1;
};
// Rows received from the ranks of a group lie by source, within a source by expert; this sorts them by expert, within
// an expert by source. From source_counts i32 [sources, experts]:
//   counts [experts], offsets [experts + 1] (multiples of `alignment`), received_of_row [R] (-1 for padding rows),
//   row_of_received [B]; rows_in_use [1] = offsets[experts], received_in_use [1] = sum of all counts. All i32.
struct ArrangeRows {
  Tensor source_counts, counts, offsets, received_of_row, row_of_received, rows_in_use, received_in_use;
  std::int64_t alignment = 1;
};
// y[r] = x[index[r] / divisor] for r < rows_in_use (absent: all); where index[r] < 0: zeros. Rows of any dtype.
struct GatherRows {
  Tensor x, index, y, rows_in_use;
  std::int64_t divisor = 1;
};
// y[t] = (residual[t] +) (extra[t] +) sum over j of x[index[t, j]], in the order of j; negative indices add nothing.
struct SumRows {
  Tensor x, index, y, residual, extra;
};

// y[t] = weight[tokens[t]]; tokens i32 [T].
struct Embedding {
  Tensor tokens, weight, y;
};
// dweight[v] (+)= sum over t with tokens[t] == v of dy[t], in the order of t. Store::write zeroes the rest.
struct EmbeddingGradient {
  Tensor tokens, dy, dweight;
  Store store = Store::write;
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

// y = a + b, elementwise; y may be a's or b's memory.
struct Add {
  Tensor a, b, y;
};
// y = x converted to y's dtype.
struct Cast {
  Tensor x, y;
};
struct Fill {
  Tensor y;
  double value = 0;
};

// Where a training step keeps the numbers that change from step to step: f64 [count] in device memory. The host writes
// the first ones before the step; the device computes the others.
struct StepValues {
  enum Index : int {
    learning_rate,
    weight_decay,
    correction1,
    correction2,
    loss_scale,  // corrections: 1 - beta^t
    gradient_norm,
    clip_factor,
    finite,  // written by ClipFactor
    count
  };
};
// out [1] f64 (+)= sum of squares over all tensors, each added up in f64 in a fixed order.
struct SumOfSquares {
  std::span<const Tensor> x;
  Tensor out;
  Store store = Store::write;
};
// sum: f64 [n], parts of the sum of squares. norm = sqrt(their sum), factor = min(1, limit / (norm + 1e-6)) (limit 0:
// 1), finite = norm is finite and so is loss.
struct ClipFactor {
  Tensor sum, loss, step_values;
  double limit = 0;
};
// A part of the parameters, all of one shape: weight in the model's dtype, master f32/f64 (absent: the weight itself).
struct AdamSlab {
  Tensor weight, master, m, v, gradient;
  bool decay = true;
};
// AdamW (bias-corrected, eps outside the root, decoupled decay):
//   g = clip_factor * gradient;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   w -= lr * (m / c1 / (sqrt(v / c2) + eps) + decay * w)
// Does nothing when step_values[finite] is 0.
struct AdamW {
  std::span<const AdamSlab> slabs;
  Tensor step_values;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
};

// name in the table, type of the arguments
#define WEFT_OPERATIONS(X)                           \
  X(matmul, Matmul)                                  \
  X(grouped_matmul, GroupedMatmul)                   \
  X(column_sum, ColumnSum)                           \
  X(grouped_column_sum, GroupedColumnSum)            \
  X(rms_norm, RmsNorm)                               \
  X(rms_norm_backward, RmsNormBackward)              \
  X(rms_norm_weight_gradient, RmsNormWeightGradient) \
  X(rotary, Rotary)                                  \
  X(attention, Attention)                            \
  X(attention_backward, AttentionBackward)           \
  X(activation, Activation)                          \
  X(activation_backward, ActivationBackward)         \
  X(router, Router)                                  \
  X(router_backward, RouterBackward)                 \
  X(route_rows, RouteRows)                           \
  X(arrange_rows, ArrangeRows)                       \
  X(gather_rows, GatherRows)                         \
  X(sum_rows, SumRows)                               \
  X(embedding, Embedding)                            \
  X(embedding_gradient, EmbeddingGradient)           \
  X(cross_entropy, CrossEntropy)                     \
  X(add, Add)                                        \
  X(cast, Cast)                                      \
  X(fill, Fill)                                      \
  X(sum_of_squares, SumOfSquares)                    \
  X(clip_factor, ClipFactor)                         \
  X(adamw, AdamW)

class Stream;

// Null where a device lacks the operation; a plan that needs it is refused when it is prepared.
struct Operations {
#define WEFT_ENTRY(name, Arguments) void (*name)(Stream&, const Arguments&) = nullptr;
  WEFT_OPERATIONS(WEFT_ENTRY)
#undef WEFT_ENTRY
};

}  // namespace weft
