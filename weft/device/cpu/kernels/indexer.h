// What the operations of sparse attention check and share.
#pragma once

#include "weft/device/cpu/kernels/dispatch.h"
#include "weft/device/cpu/kernels/lane_sum.h"
#include "weft/device/operations/sparse_attention.h"

namespace weft::WEFT_ISA {

inline void check_indexer(const char* name, const Indexer& x) {
  const std::int64_t tokens = x.q.rows();
  require(x.heads >= 1 && x.dim >= 1 && columns_of(x.q) == x.heads * x.dim, name, "q is not [T, heads * dim]");
  require(x.k.rows() == tokens && columns_of(x.k) == x.dim, name, "the indexer's k is not [T, dim]");
  require(x.w.rows() == tokens && columns_of(x.w) == x.heads, name, "the indexer's w is not [T, heads]");
  require(x.q.dtype == x.k.dtype && x.q.dtype == x.w.dtype, name, "the indexer's q, k and w differ in dtype");
}

inline void check_sparse(const char* name, const SparseAttention& op) {
  const Attention& x = op.attention;
  const std::int64_t tokens = x.q.rows();
  const auto fits = [name](bool condition, const char* why) { require(condition, name, why); };
  fits(x.heads > 0 && x.kv_heads > 0 && x.heads % x.kv_heads == 0, "heads are not a multiple of kv_heads");
  fits(columns_of(x.q) == x.heads * x.dim, "q is not [T, heads * dim]");
  fits(x.k.rows() == tokens && columns_of(x.k) == x.kv_heads * x.dim, "k is not [T, kv_heads * dim]");
  fits(x.v.rows() == tokens && columns_of(x.v) == x.kv_heads * x.value_dim, "v is not [T, kv_heads * value_dim]");
  fits(x.out.rows() == tokens && columns_of(x.out) == x.heads * x.value_dim, "out is not [T, heads * value_dim]");
  fits(x.q.dtype == x.k.dtype && x.q.dtype == x.v.dtype && x.q.dtype == x.out.dtype, "q, k, v and out differ in dtype");
  fits(x.lse.rows() == x.heads && columns_of(x.lse) == tokens, "lse is not [heads, T]");
  fits(x.lse.dtype == (x.q.dtype == DType::f64 ? DType::f64 : DType::f32), "lse is not of the accumulator's dtype");
  fits(x.window == 0 && !x.sinks.given(), "chosen keys go with neither window nor sinks");
  fits(op.keys.dtype == DType::i32 && op.keys.rows() == tokens && columns_of(op.keys) >= 1, "keys is not i32 [T, K]");
}

// The keys of query t: ascending token indices, checked.
struct KeyRow {
  const std::int32_t* keys;
  std::int64_t count = 0;

  KeyRow(const char* name, const Tensor& all, std::int64_t t) : keys(row<std::int32_t>(all, t)) {
    const std::int64_t K = columns_of(all);
    while (count < K && keys[count] >= 0) {
      require(keys[count] < all.rows(), name, "a key beyond the tokens");
      ++count;
    }
  }
};

template <class T>
WEFT_INLINE Accumulator<T> dot(const T* a, const T* b, std::int64_t count) {
  return lane_sum<Accumulator<T>>(
      count, [=](std::int64_t i) __attribute__((always_inline)) { return widen(a[i]) * widen(b[i]); });
}

// sums[i] += factor * x[i]
template <class Acc, class T>
WEFT_INLINE void add_scaled(Acc* __restrict sums, Acc factor, const T* __restrict x, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) sums[i] += factor * widen_to<Acc>(x[i]);
}

template <class T, class Acc>
WEFT_INLINE void store_row(const Acc* from, T* to, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) to[i] = narrow<T>(from[i]);
}

}  // namespace weft::WEFT_ISA
