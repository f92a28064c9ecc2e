// Typed loads and stores: bfloat16 is widened to float when read and rounded to nearest even when written, without
// branches, so that loops over it vectorise. (Inline members of bfloat16 and Tensor are
// avoided in kernels: where the compiler does not inline them, all instruction sets share one copy.)
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "weft/device/cpu/kernels/fast_math.h"
#include "weft/device/tensor.h"

namespace weft::WEFT_ISA {

WEFT_INLINE float widen(float x) { return x; }
WEFT_INLINE double widen(double x) { return x; }
WEFT_INLINE float widen(bfloat16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }
// In `Acc`, whatever the storage.
template <class Acc, class T>
WEFT_INLINE Acc widen_to(T x) {
  return static_cast<Acc>(widen(x));
}

template <class T>
struct Narrow {
  static T from(float x) { return static_cast<T>(x); }
  static T from(double x) { return static_cast<T>(x); }
};
template <>
struct Narrow<bfloat16> {
  WEFT_INLINE static bfloat16 from(float x) {
    const auto u = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1u);
    const std::uint32_t quiet = u | 0x400000u;  // NaN stays NaN
    bfloat16 y;
    y.bits = static_cast<std::uint16_t>((x != x ? quiet : rounded) >> 16);
    return y;
  }
  // Rounded once: the way through float keeps a sticky last bit (round to odd).
  WEFT_INLINE static bfloat16 from(double x) {
    const float nearest = static_cast<float>(x);
    const double back = static_cast<double>(nearest), magnitude = x < 0 ? -x : x;
    auto u = std::bit_cast<std::uint32_t>(nearest);
    u -= (back < 0 ? -back : back) > magnitude ? 1u : 0u;  // towards zero
    u |= back != x ? 1u : 0u;
    return from(std::bit_cast<float>(u));
  }
};
// Rounds a result to its storage.
template <class T, class Acc>
WEFT_INLINE T narrow(Acc x) {
  return Narrow<T>::from(x);
}

// Zero is the same bits in every type.
template <class T>
inline void clear(T* at, std::int64_t count) {
  if (count > 0) std::memset(static_cast<void*>(at), 0, static_cast<std::size_t>(count) * sizeof(T));
}

// As Tensor::columns and Tensor::contiguous.
inline std::int64_t columns_of(const Tensor& tensor) {
  return tensor.rows() > 0 ? tensor.shape.elements() / tensor.rows() : 0;
}
inline bool contiguous(const Tensor& tensor) { return tensor.rows() <= 1 || tensor.stride == columns_of(tensor); }

// Row r of a tensor; rows are contiguous, but need not follow each other.
template <class T>
WEFT_INLINE T* row(const Tensor& tensor, std::int64_t r) {
  return static_cast<T*>(tensor.data) + r * tensor.stride;
}

}  // namespace weft::WEFT_ISA
