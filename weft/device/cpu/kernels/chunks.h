// What chunked recurrences with decay share (state_scan*.cc, delta_rule*.cc): how tokens are cut into chunks, the decay
// inside a chunk, products of small matrices, and how a team shares tasks.
//
// All cuts are fixed by the arguments, and tasks write to places of their own: bits do not depend on threads.
#pragma once

#include <atomic>
#include <cmath>
#include <initializer_list>

#include "weft/device/cpu/kernels/blocked_gemm.h"
#include "weft/device/cpu/kernels/carver.h"
#include "weft/device/cpu/kernels/dispatch.h"
#include "weft/device/cpu/kernels/lane_sum.h"
#include "weft/device/operations/store.h"

namespace weft::WEFT_ISA {

struct Chunks {
  std::int64_t tokens, length, chunk;
  const std::int32_t* boundaries;  // null: none

  Chunks(std::int64_t all, std::int64_t sequence, std::int64_t step, const Tensor& starts)
      : tokens(all),
        length(sequence > 0 ? sequence : std::max<std::int64_t>(all, 1)),
        chunk(std::min(step, length)),
        boundaries(optional<const std::int32_t>(starts)) {}
  std::int64_t per_sequence() const { return (length + chunk - 1) / chunk; }
  std::int64_t sequences() const { return tokens / length; }
  std::int64_t count() const { return sequences() * per_sequence(); }
  std::int64_t begin(std::int64_t c) const { return c / per_sequence() * length + c % per_sequence() * chunk; }
  std::int64_t size(std::int64_t c) const { return std::min(chunk, length - c % per_sequence() * chunk); }
};

// Decay of one chunk and head, from the logarithms of its factors. Their sums are kept in double: differences of large
// sums are what counts.
//   D[t][j] = factor from token j to token t (1 if the same), 0 where j > t or their documents differ
//   from_start[t]: from the state before the chunk; to_end[j]: to the state after it; carry: from the one to the other
template <class T>
struct Decay {
  double* sums;         // running sums of the logarithms, up to and with t
  std::int64_t* first;  // of t's document, within the chunk
  T *from_start, *to_end;
  T carry;

  void carve(Carver& carver, std::int64_t chunk) {
    sums = carver.take<double>(chunk);
    first = carver.take<std::int64_t>(chunk);
    from_start = carver.take<T>(chunk);
    to_end = carver.take<T>(chunk);
  }

  // sums[t] holds the logarithm of token t's factor.
  void set(const Chunks& chunks, std::int64_t begin, std::int64_t size) {
    for (std::int64_t t = 1; t < size; ++t) sums[t] += sums[t - 1];
    const std::int32_t* starts = chunks.boundaries;
    for (std::int64_t t = 0; t < size; ++t) {
      first[t] = starts != nullptr ? std::max<std::int64_t>(starts[begin + t] - begin, 0) : 0;
      const bool continues = starts == nullptr || starts[begin + t] < begin;
      from_start[t] = continues ? static_cast<T>(std::exp(sums[t])) : T{0};
    }
    const std::int64_t last = size - 1;
    for (std::int64_t j = 0; j < size; ++j)
      to_end[j] = first[j] == first[last] ? static_cast<T>(std::exp(sums[last] - sums[j])) : T{0};
    carry = from_start[last];
  }

  // D[t][j] for j in [0, t], zeros in (t, width).
  void matrix(std::int64_t size, std::int64_t width, T* D, std::int64_t stride) const {
    for (std::int64_t t = 0; t < size; ++t, D += stride) {
      const double at = sums[t];
      for (std::int64_t j = 0; j < first[t]; ++j) D[j] = 0;
#pragma omp simd
      for (std::int64_t j = first[t]; j < t; ++j) D[j] = fast_exp_negative(static_cast<T>(at - sums[j]));
      D[t] = 1;
      for (std::int64_t j = t + 1; j < width; ++j) D[j] = 0;
    }
  }
};

// A factor of a product as it is stored; transposed: the product uses its columns as rows.
template <class S>
struct Matrix {
  const S* at;
  std::int64_t stride;
  bool transposed = false;
};
template <class S>
Matrix<S> turned(const S* at, std::int64_t stride) {
  return {at, stride, true};
}

enum class Add : bool { no, yes };

// c [m, n] (+)= a [m, k] b [k, n], on the calling thread.
template <class T, class A, class B>
void product(std::int64_t m, std::int64_t n, std::int64_t k, Matrix<A> a, Matrix<B> b, T* c, std::int64_t stride,
             Add add = Add::no) {
  Product x;
  x.m = m;
  x.n = n;
  x.k = k;
  x.a = {a.at, dtype_of<A>(), a.stride, !a.transposed};
  x.b = {b.at, dtype_of<B>(), b.stride, b.transposed};
  x.c = c;
  x.c_dtype = dtype_of<T>();
  x.c_stride = stride;
  x.add = add == Add::yes;
  multiply(x);
}

// Lower triangular matrices [n, n] (diagonal included) are handled in strips of this many rows: what is above the
// diagonal inside a strip's last block is computed, or must be zero; the rest is not looked at.
constexpr std::int64_t strip = 48;  // a multiple of 4 and of every tile_rows
static_assert(strip % 4 == 0);
inline std::int64_t strip_end(std::int64_t row, std::int64_t n) { return std::min(row / strip * strip + strip, n); }

// c [n, columns] (+)= lower x
template <class T>
void lower_times(std::int64_t n, std::int64_t columns, const T* lower, std::int64_t lower_stride, Matrix<T> x, T* c,
                 std::int64_t stride, Add add = Add::no) {
  for (std::int64_t r = 0; r < n; r += strip) {
    const std::int64_t end = std::min(r + strip, n);
    product<T>(end - r, columns, end, Matrix<T>{lower + r * lower_stride, lower_stride}, x, c + r * stride, stride,
               add);
  }
}

// c [n, columns] (+)= lower^T x
template <class T>
void lower_turned_times(std::int64_t n, std::int64_t columns, const T* lower, std::int64_t lower_stride, Matrix<T> x,
                        T* c, std::int64_t stride, Add add = Add::no) {
  for (std::int64_t r = 0; r < n; r += strip) {
    const std::int64_t end = std::min(r + strip, n);
    product<T>(end - r, columns, n - r, turned(lower + r * lower_stride + r, lower_stride),
               Matrix<T>{x.at + r * x.stride, x.stride}, c + r * stride, stride, add);
  }
}

// c [n, n] = the lower part of a b^T, a and b [n, k]
template <class T>
void lower_outer(std::int64_t n, std::int64_t k, Matrix<T> a, Matrix<T> b, T* c, std::int64_t stride) {
  for (std::int64_t r = 0; r < n; r += strip) {
    const std::int64_t end = std::min(r + strip, n);
    product<T>(end - r, end, k, Matrix<T>{a.at + r * a.stride, a.stride}, turned(b.at, b.stride), c + r * stride,
               stride);
  }
}

// to [size, columns], contiguous = rows of a tensor from row `begin`, column `column`, widened.
template <class S, class T>
void copy_in(const Tensor& from, std::int64_t begin, std::int64_t size, std::int64_t column, std::int64_t columns,
             T* __restrict to) {
  for (std::int64_t t = 0; t < size; ++t, to += columns) {
    const S* x = row<S>(from, begin + t) + column;
#pragma omp simd
    for (std::int64_t j = 0; j < columns; ++j) to[j] = widen_to<T>(x[j]);
  }
}
template <class S, class T>
void copy_out(const T* from, const Tensor& to, std::int64_t begin, std::int64_t size, std::int64_t column,
              std::int64_t columns) {
  for (std::int64_t t = 0; t < size; ++t, from += columns) {
    S* x = row<S>(to, begin + t) + column;
#pragma omp simd
    for (std::int64_t j = 0; j < columns; ++j) x[j] = narrow<S>(from[j]);
  }
}

template <class T>
WEFT_INLINE T dot(const T* a, const T* b, std::int64_t count) {
  return lane_sum<T>(
      count, [=](std::int64_t j) __attribute__((always_inline)) { return a[j] * b[j]; });
}

// work(task) for every task, on whichever thread is free.
template <class Work>
void for_each_task(Stream& stream, std::int64_t tasks, const Work& work) {
  Team& team = team_of(stream);
  std::atomic<std::int64_t> next{0};
  const auto member_work = [&](int) {
    for (std::int64_t task = next++; task < tasks; task = next++) work(task);
  };
  if (team.size() == 1 || tasks == 1) return member_work(0);
  team.run(std::cref(member_work));
}

// Sums over chunks of sums [chunks, gradients * heads], in order, into the gradients [heads] of parameters.
template <class T>
void add_chunk_sums(const Tensor& sums, std::int64_t chunks, std::int64_t heads,
                    std::initializer_list<const Tensor*> gradients, Store store) {
  std::int64_t column = 0;
  for (const Tensor* gradient : gradients) {
    for (std::int64_t h = 0; gradient->given() && h < heads; ++h) {
      double sum = 0;
      for (std::int64_t c = 0; c < chunks; ++c) sum += static_cast<double>(row<T>(sums, c)[column + h]);
      T& to = static_cast<T*>(gradient->data)[h];
      to = static_cast<T>(store == Store::add ? static_cast<double>(to) + sum : sum);
    }
    column += heads;
  }
}

inline double softplus(double x) { return x > 30 ? x + std::exp(-x) : std::log1p(std::exp(x)); }
inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace weft::WEFT_ISA
