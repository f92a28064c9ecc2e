#include "weft/device/argument_checks.h"

#include "weft/device/argument_fits.h"

namespace weft {

namespace {

// What attention over all keys and over chosen ones share.
void check_heads(const Fits& fits, const Attention& x) {
  const std::int64_t T = x.q.rows();
  fits(x.heads > 0 && x.kv_heads > 0 && x.heads % x.kv_heads == 0, "heads are not a multiple of kv_heads");
  fits(x.q.columns() == x.heads * x.dim, "q is not [T, heads * dim]");
  fits(is_matrix(x.k, T, x.kv_heads * x.dim), "k is not [T, kv_heads * dim]");
  fits(is_matrix(x.v, T, x.kv_heads * x.value_dim), "v is not [T, kv_heads * value_dim]");
  fits(is_matrix(x.out, T, x.heads * x.value_dim), "out is not [T, heads * value_dim]");
  fits(x.q.dtype == x.k.dtype && x.q.dtype == x.v.dtype && x.q.dtype == x.out.dtype, "q, k, v and out differ in dtype");
  fits(is_matrix(x.lse, x.heads, T) && x.lse.dtype == accumulator_of(x.q), "lse is not acc [heads, T]");
}

template <class Backward>
void check_head_gradients(const Fits& fits, const Backward& op, const Attention& x) {
  fits.gradients({{op.dout, x.out}, {op.dq, x.q}, {op.dk, x.k}, {op.dv, x.v}});
  fits(same_size(op.scratch, x.lse) && op.scratch.dtype == x.lse.dtype, "scratch differs from lse");
}

void check_indexer(const Fits& fits, const Indexer& x) {
  const std::int64_t T = x.q.rows();
  fits(x.heads >= 1 && x.dim >= 1 && x.q.columns() == x.heads * x.dim, "q is not [T, heads * dim]");
  fits(is_matrix(x.k, T, x.dim), "the indexer's k is not [T, dim]");
  fits(is_matrix(x.w, T, x.heads), "the indexer's w is not [T, heads]");
  fits(x.q.dtype == x.k.dtype && x.q.dtype == x.w.dtype, "the indexer's q, k and w differ in dtype");
}

void check_keys(const Fits& fits, const Tensor& keys, std::int64_t tokens) {
  fits(keys.dtype == DType::i32 && keys.rows() == tokens && keys.columns() >= 1, "keys is not i32 [T, K]");
}

void check_sizes(const Fits& fits, const StateScan& x) {
  fits(x.heads >= 1 && x.groups >= 1 && x.heads % x.groups == 0, "heads are not a multiple of groups");
  fits(x.dim >= 1 && x.state >= 1, "dim and state are at least 1");
}
void check_sizes(const Fits& fits, const DeltaRule& x) {
  fits(x.heads >= 1 && x.key_heads >= 1 && x.heads % x.key_heads == 0, "heads are not a multiple of key_heads");
  fits(x.dim >= 1 && x.value_dim >= 1, "dim and value_dim are at least 1");
}

// All but y.
void check_inputs(const Fits& fits, const StateScan& x) {
  const std::int64_t T = x.x.rows();
  check_sizes(fits, x);
  fits.chunks(x.boundaries, x.length, x.chunk, T);
  fits(x.x.columns() == x.heads * x.dim, "x is not [T, heads * dim]");
  fits(is_matrix(x.B, T, x.groups * x.state) && same_size(x.B, x.C), "B or C is not [T, groups * state]");
  fits(is_matrix(x.dt, T, x.heads), "dt is not [T, heads]");
  for (const Tensor* tensor : {&x.B, &x.C, &x.dt}) fits(tensor->dtype == x.x.dtype, "x, B, C and dt differ in dtype");
  const DType acc = accumulator_of(x.x);
  for (const Tensor* tensor : {&x.A_log, &x.dt_bias, &x.D})
    fits((!tensor->given() && tensor == &x.D) || (tensor->dtype == acc && tensor->shape.elements() == x.heads),
         "A_log, dt_bias or D is not acc [heads]");
  fits(
      x.states.dtype == acc && x.states.shape.elements() == chunks_of(T, x.length, x.chunk) * x.heads * x.dim * x.state,
      "states is not acc [chunks, heads * dim * state]");
}

void check_inputs(const Fits& fits, const DeltaRule& x) {
  const std::int64_t T = x.q.rows();
  check_sizes(fits, x);
  fits.chunks(x.boundaries, x.length, x.chunk, T);
  fits(x.q.columns() == x.key_heads * x.dim && same_size(x.q, x.k), "q or k is not [T, key_heads * dim]");
  fits(is_matrix(x.v, T, x.heads * x.value_dim), "v is not [T, heads * value_dim]");
  fits(is_matrix(x.a, T, x.heads) && same_size(x.a, x.b), "a or b is not [T, heads]");
  for (const Tensor* tensor : {&x.k, &x.v, &x.a, &x.b})
    fits(tensor->dtype == x.q.dtype, "q, k, v, a and b differ in dtype");
  const DType acc = accumulator_of(x.q);
  for (const Tensor* tensor : {&x.A_log, &x.dt_bias})
    fits(tensor->dtype == acc && tensor->shape.elements() == x.heads, "A_log or dt_bias is not acc [heads]");
  fits(x.states.dtype == acc &&
           x.states.shape.elements() == chunks_of(T, x.length, x.chunk) * x.heads * x.dim * x.value_dim,
       "states is not acc [chunks, heads * dim * value_dim]");
}

bool are_sums(const Tensor& sums, DType acc, std::int64_t chunks, std::int64_t columns) {
  return sums.dtype == acc && is_matrix(sums, chunks, columns) && sums.contiguous();
}

}  // namespace

void check_arguments(const char* operation, const Attention& op) {
  const Fits fits(operation);
  check_heads(fits, op);
  fits(!op.sinks.given() || op.sinks.shape.elements() == op.heads, "sinks is not [heads]");
  fits.sequences(op.boundaries, op.length, op.q.rows());
}

void check_arguments(const char* operation, const AttentionBackward& op) {
  const Fits fits(operation);
  const Attention& x = op.forward;
  check_arguments(operation, x);
  check_head_gradients(fits, op, x);
  fits(op.dsinks.given() == x.sinks.given(), "dsinks goes with sinks");
  if (op.dsinks.given())
    fits(op.dsinks.dtype == x.lse.dtype && op.dsinks.shape.elements() == x.heads, "dsinks is not acc [heads]");
}

void check_arguments(const char* operation, const ChooseKeys& op) {
  const Fits fits(operation);
  const std::int64_t T = op.indexer.q.rows();
  check_indexer(fits, op.indexer);
  check_keys(fits, op.keys, T);
  fits.sequences(op.boundaries, op.length, T);
}

void check_arguments(const char* operation, const SparseAttention& op) {
  const Fits fits(operation);
  const Attention& x = op.attention;
  check_heads(fits, x);
  fits(x.window == 0 && !x.sinks.given(), "chosen keys go with neither window nor sinks");
  check_keys(fits, op.keys, x.q.rows());
}

void check_arguments(const char* operation, const SparseAttentionBackward& op) {
  check_arguments(operation, op.forward);
  check_head_gradients(Fits(operation), op, op.forward.attention);
}

void check_arguments(const char* operation, const AttentionMeans& op) {
  const Fits fits(operation);
  check_arguments(operation, op.attention);
  fits(op.heads >= op.attention.attention.heads, "heads are fewer than those here");
  fits(is_matrix(op.means, op.attention.keys.rows(), op.attention.keys.columns()), "means is not [T, K]");
  fits(op.means.dtype == op.attention.attention.lse.dtype, "means is not acc");
}

void check_arguments(const char* operation, const IndexerLoss& op) {
  const Fits fits(operation);
  const Indexer& x = op.indexer;
  const Attention& attention = op.attention.attention;
  check_indexer(fits, x);
  check_arguments(operation, op.attention);
  fits(attention.q.rows() == x.q.rows() && attention.q.dtype == x.q.dtype,
       "attention and indexer differ in tokens or dtype");
  if (op.means.given()) {
    fits(op.first >= 0 && op.queries >= 0 && op.first + op.queries <= x.q.rows(), "there are no such queries");
    fits(is_matrix(op.means, op.queries, op.attention.keys.columns()) && op.means.dtype == op.scratch.dtype,
         "means is not acc [queries, K]");
  }
  fits.gradients({{op.dq, x.q}, {op.dk, x.k}, {op.dw, x.w}});
  fits(is_matrix(op.scratch, x.q.rows(), op.attention.keys.columns() + 1), "scratch is not [T, K + 1]");
  fits(op.scratch.dtype == attention.lse.dtype && op.loss.dtype == op.scratch.dtype, "scratch or loss is not acc");
}

void check_arguments(const char* operation, const StateScan& op) {
  const Fits fits(operation);
  check_inputs(fits, op);
  fits(same_size(op.x, op.y) && op.x.dtype == op.y.dtype, "x and y differ in shape or dtype");
}

void check_arguments(const char* operation, const StateScanBackward& op) {
  const Fits fits(operation);
  const StateScan& x = op.forward;
  check_sizes(fits, x);
  fits.gradients({{op.dA_log, x.A_log}, {op.ddt_bias, x.dt_bias}});
  fits(op.dD.given() == x.D.given(), "dD goes with D");
  if (op.dD.given()) fits.gradients({{op.dD, x.D}});
  if (x.x.rows() == 0) return;
  check_inputs(fits, x);
  fits.gradients({{op.dy, x.x}, {op.dx, x.x}, {op.dB, x.B}, {op.dC, x.C}, {op.ddt, x.dt}, {op.dstates, x.states}});
  const std::int64_t chunks = chunks_of(x.x.rows(), x.length, x.chunk);
  fits(are_sums(op.sums, x.A_log.dtype, chunks, 3 * x.heads), "sums is not acc [chunks, 3 * heads]");
}

void check_arguments(const char* operation, const DeltaRule& op) {
  const Fits fits(operation);
  check_inputs(fits, op);
  fits(same_size(op.v, op.y) && op.v.dtype == op.y.dtype, "v and y differ in shape or dtype");
}

void check_arguments(const char* operation, const DeltaRuleBackward& op) {
  const Fits fits(operation);
  const DeltaRule& x = op.forward;
  check_sizes(fits, x);
  fits.gradients({{op.dA_log, x.A_log}, {op.ddt_bias, x.dt_bias}});
  if (x.q.rows() == 0) return;
  check_inputs(fits, x);
  fits.gradients({{op.dy, x.v}, {op.dq, x.q}, {op.dk, x.k}, {op.dv, x.v}, {op.da, x.a}, {op.db, x.b}});
  const std::int64_t chunks = chunks_of(x.q.rows(), x.length, x.chunk);
  fits(are_sums(op.sums, x.A_log.dtype, chunks, 2 * x.heads), "sums is not acc [chunks, 2 * heads]");
}

}  // namespace weft
