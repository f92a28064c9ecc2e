// Vectors of one instruction set, as GCC vector types: the widest registers there are, loads that convert, and square
// transposes in registers.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "weft/device/cpu/kernels/load.h"

namespace weft::WEFT_ISA {

#if defined(__AVX512F__)
constexpr int vector_bytes = 64;
#elif defined(__AVX2__)
constexpr int vector_bytes = 32;
#else
constexpr int vector_bytes = 16;
#endif

template <class T>
constexpr int lanes = vector_bytes / static_cast<int>(sizeof(T));

template <class T, int count>
struct VectorOf {
  typedef T type __attribute__((vector_size(sizeof(T) * count)));
  typedef T in_memory __attribute__((vector_size(sizeof(T) * count), may_alias, aligned(sizeof(T))));
};
template <class T, int count = lanes<T>>
using Vector = typename VectorOf<T, count>::type;

// n consecutive elements of type S, as T.
template <class T, int n = lanes<T>, class S>
WEFT_INLINE Vector<T, n> load(const S* at) {
  if constexpr (std::is_same_v<S, bfloat16>) {
    const Vector<std::uint16_t, n> raw = *reinterpret_cast<const typename VectorOf<std::uint16_t, n>::in_memory*>(at);
    const auto wide = (Vector<float, n>)(__builtin_convertvector(raw, Vector<std::uint32_t, n>) << 16);
    if constexpr (std::is_same_v<T, float>)
      return wide;
    else
      return __builtin_convertvector(wide, Vector<T, n>);
  } else {
    const Vector<S, n> raw = *reinterpret_cast<const typename VectorOf<S, n>::in_memory*>(at);
    if constexpr (std::is_same_v<S, T>)
      return raw;
    else
      return __builtin_convertvector(raw, Vector<T, n>);
  }
}

template <int n, class T>
WEFT_INLINE void store(T* at, const Vector<T, n>& x) {
  *reinterpret_cast<typename VectorOf<T, n>::in_memory*>(at) = x;
}
template <class T>
WEFT_INLINE void store(T* at, const Vector<T>& x) {
  store<lanes<T>, T>(at, x);
}

// Rounded to the type of the memory (as narrow in load.h).
WEFT_INLINE void store_narrow(float* at, const Vector<float>& x) { store(at, x); }
WEFT_INLINE void store_narrow(double* at, const Vector<double>& x) { store(at, x); }
WEFT_INLINE void store_narrow(bfloat16* at, const Vector<float>& x) {
  constexpr int n = lanes<float>;
  const auto u = (Vector<std::uint32_t, n>)x;
  const auto rounded = u + 0x7fffu + ((u >> 16) & 1u);
  const auto bits = __builtin_convertvector((x != x ? u | 0x400000u : rounded) >> 16, Vector<std::uint16_t, n>);
  *reinterpret_cast<VectorOf<std::uint16_t, n>::in_memory*>(at) = bits;
}

// Copies exactly `count` elements in as few vectors as possible.
template <int count, class T, class S>
WEFT_INLINE void copy_fixed(const S* from, T* to) {
  if constexpr (count == 1) {
    *to = widen_to<T>(*from);
  } else if constexpr (count > 1) {
    constexpr int n = std::min<int>(lanes<T>, std::bit_floor(static_cast<unsigned>(count)));
    store<n, T>(to, load<T, n>(from));
    copy_fixed<count - n>(from + n, to + n);
  }
}

namespace transpose_detail {
// One butterfly step: of rows a and b (distance `step`), swaps the upper `step`s of a with the lower ones of b.
template <int step, bool upper, class V, int... i>
WEFT_INLINE V merge(const V& a, const V& b, std::integer_sequence<int, i...>) {
  constexpr int n = sizeof...(i);
  return __builtin_shufflevector(a, b, (upper ? ((i & step) ? n + i : i + step) : ((i & step) ? n + i - step : i))...);
}
template <int step, class V, int n>
WEFT_INLINE void stage(V (&rows)[n]) {
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i)
    if ((i & step) == 0) {
      const V a = rows[i], b = rows[i + step];
      rows[i] = merge<step, false>(a, b, std::make_integer_sequence<int, n>{});
      rows[i + step] = merge<step, true>(a, b, std::make_integer_sequence<int, n>{});
    }
}
}  // namespace transpose_detail

// rows[i][j] becomes rows[j][i].
template <class V, int n>
WEFT_INLINE void transpose(V (&rows)[n]) {
  using namespace transpose_detail;
  stage<1>(rows);
  if constexpr (n > 2) stage<2>(rows);
  if constexpr (n > 4) stage<4>(rows);
  if constexpr (n > 8) stage<8>(rows);
}

}  // namespace weft::WEFT_ISA
