// Attention over one block of keys.
#include "weft/device/argument_checks_block.h"

#include "weft/device/argument_fits.h"

namespace weft {

namespace {

void check_ranges(const Fits& fits, const Tensor& first, const Tensor& end, std::int64_t queries) {
  for (const Tensor& range : {first, end})
    fits(range.dtype == DType::i32 && range.shape.elements() == queries, "first or end is not i32 [Tq]");
}

bool is_sum(const Tensor& x, const Tensor& of, std::int64_t rows, std::int64_t columns) {
  return is_matrix(x, rows, columns) && x.dtype == accumulator_of(of);
}

void check_heads(const Fits& fits, const AttentionBlock& x) {
  const std::int64_t Tq = x.q.rows(), Tk = x.k.rows();
  fits(x.heads > 0 && x.kv_heads > 0 && x.heads % x.kv_heads == 0, "heads are not a multiple of kv_heads");
  fits(x.q.columns() == x.heads * x.dim, "q is not [Tq, heads * dim]");
  fits(x.k.columns() == x.kv_heads * x.dim, "k is not [Tk, kv_heads * dim]");
  fits(is_matrix(x.v, Tk, x.kv_heads * x.value_dim), "v is not [Tk, kv_heads * value_dim]");
  fits(x.q.dtype == x.k.dtype && x.q.dtype == x.v.dtype, "q, k and v differ in dtype");
  fits(is_sum(x.lse, x.q, x.heads, Tq), "lse is not acc [heads, Tq]");
  check_ranges(fits, x.first, x.end, Tq);
}

}  // namespace

void check_arguments(const char* operation, const VisibleKeys& op) {
  const Fits fits(operation);
  fits(op.places.dtype == DType::i32 && op.key_places.dtype == DType::i32, "places are not i32");
  fits(!op.boundaries.given() || op.boundaries.dtype == DType::i32, "boundaries is not i32");
  fits(op.boundaries.given() || op.length > 0, "neither boundaries nor length are given");
  check_ranges(fits, op.first, op.end, op.places.shape.elements());
}

void check_arguments(const char* operation, const AttentionBlock& op) {
  const Fits fits(operation);
  check_heads(fits, op);
  fits(is_sum(op.out, op.q, op.q.rows(), op.heads * op.value_dim), "out is not acc [Tq, heads * value_dim]");
  fits(!op.sinks.given() || op.sinks.shape.elements() == op.heads, "sinks is not [heads]");
  fits(!op.sinks.given() || op.store == Store::write, "sinks go with the first block");
}

void check_arguments(const char* operation, const AttentionDelta& op) {
  const Fits fits(operation);
  const std::int64_t T = op.dout.rows();
  fits(is_matrix(op.out, T, op.heads * op.value_dim) && is_matrix(op.dout, T, op.heads * op.value_dim),
       "out or dout is not [T, heads * value_dim]");
  fits(op.out.dtype == op.dout.dtype || op.out.dtype == accumulator_of(op.dout), "out has another dtype");
  fits(is_sum(op.delta, op.dout, op.heads, T) && is_sum(op.lse, op.dout, op.heads, T),
       "delta or lse is not acc [heads, T]");
  fits(op.dsinks.given() == op.sinks.given(), "dsinks goes with sinks");
  if (op.dsinks.given())
    fits(op.dsinks.dtype == op.lse.dtype && op.dsinks.shape.elements() == op.heads, "dsinks is not acc [heads]");
}

void check_arguments(const char* operation, const AttentionBlockBackward& op) {
  const Fits fits(operation);
  const AttentionBlock& x = op.forward;
  const std::int64_t Tq = x.q.rows(), Tk = x.k.rows();
  check_heads(fits, x);
  fits(!x.sinks.given(), "sinks belong to attention_delta");
  fits(is_matrix(op.dout, Tq, x.heads * x.value_dim) && op.dout.dtype == x.q.dtype,
       "dout is not [Tq, heads * value_dim]");
  fits(is_sum(op.delta, x.q, x.heads, Tq), "delta is not acc [heads, Tq]");
  fits(is_sum(op.dq, x.q, Tq, x.heads * x.dim), "dq is not acc [Tq, heads * dim]");
  fits(is_sum(op.dk, x.q, Tk, x.kv_heads * x.dim), "dk is not acc [Tk, kv_heads * dim]");
  fits(is_sum(op.dv, x.q, Tk, x.kv_heads * x.value_dim), "dv is not acc [Tk, kv_heads * value_dim]");
}

}  // namespace weft
