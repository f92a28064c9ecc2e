// Data types of tensors, and bfloat16.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace weft {

enum class DType : std::uint8_t { f32, f64, bf16, i16, i32, i64, u8 };

std::size_t size_of(DType dtype);  // bytes per element
std::string_view name_of(DType dtype);

// 16 bits of storage; all arithmetic is in float. Rounds to nearest even; NaN stays NaN.
struct bfloat16 {
  std::uint16_t bits = 0;

  bfloat16() = default;
  explicit bfloat16(float x) {
    const auto u = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    bits = static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : rounded);
  }
  operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

// A float split into two halves of 16 bits, the form in which the weights of bf16 models are kept: the nearest bf16
// number, which models compute with, and a remainder in units of the float's last place, so that
//   bits of the float = (bits of the weight << 16) + remainder.
// A tie goes to the bf16 number farther from zero, with remainder -2^15: 2^15 would not fit.
// This holds for every float, including infinities and floats that round to one. A NaN becomes a NaN weight with
// remainder 0: it stays a NaN but loses its lower bits. (Always inlined: kernels of every instruction set use it.)
struct SplitFloat {
  bfloat16 weight;
  std::int16_t remainder = 0;
};
[[gnu::always_inline]] inline SplitFloat split_float(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
  SplitFloat split;
  split.weight.bits = static_cast<std::uint16_t>((nan ? u | 0x400000u : u + 0x8000u) >> 16);
  split.remainder = static_cast<std::int16_t>(nan ? 0u : u & 0xffffu);
  return split;
}
[[gnu::always_inline]] inline float join_float(const SplitFloat& split) {
  const std::uint32_t upper = static_cast<std::uint32_t>(split.weight.bits) << 16;
  return std::bit_cast<float>(upper + static_cast<std::uint32_t>(std::int32_t{split.remainder}));
}

// The type that sums of T are kept in: double for double, float for everything else.
template <class T>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::f64;
}
template <>
constexpr DType dtype_of<bfloat16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<std::int16_t>() {
  return DType::i16;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
  return DType::i64;
}
template <>
constexpr DType dtype_of<std::uint8_t>() {
  return DType::u8;
}

}  // namespace weft
