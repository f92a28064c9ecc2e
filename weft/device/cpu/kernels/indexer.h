// What the operations of sparse attention share.
#pragma once

#include "weft/device/argument_checks.h"
#include "weft/device/cpu/kernels/dispatch.h"
#include "weft/device/cpu/kernels/lane_sum.h"
#include "weft/device/operations/sparse_attention.h"

namespace weft::WEFT_ISA {

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
