// exp, log, tanh and sigmoid that the compiler can vectorise: no branches, no tables, no library calls.
// float: within 2 ulp of the exact value (sigmoid and tanh 3), over the whole range: overflow gives infinity,
// underflow passes through the denormals to 0, NaN stays NaN. double: the standard library.
// The polynomials are minimax fits of our own (relative error below 4e-8 of the result).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#ifndef WEFT_ISA
#error "kernels are compiled per instruction set"
#endif

namespace weft::WEFT_ISA {

#define WEFT_INLINE [[gnu::always_inline]] inline

namespace fast_math {
constexpr float log2_e = 1.44269504f;
constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;  // n * ln2_high is exact for |n| < 2^15
constexpr float magic = 12582912.0f;                                 // 1.5 * 2^23: adding it rounds to an integer
WEFT_INLINE float power_of_two(std::int32_t n) { return std::bit_cast<float>((n + 127) << 23); }
}  // namespace fast_math

WEFT_INLINE float fast_exp(float x) {
  using namespace fast_math;
  // exp(x) = 2^n exp(r), |r| <= ln(2) / 2. The bounds are just past the largest and the smallest results.
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  const float shifted = x * log2_e + magic;
  const float n = shifted - magic;
  const std::int32_t exponent = std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(magic);
  const float r = (x - n * ln2_high) - n * ln2_low;
  float q = 0.001381493077f;
  q = q * r + 0.008368767726f;
  q = q * r + 0.04166838852f;
  q = q * r + 0.1666652022f;
  q = q * r + 0.4999999341f;
  const float y = (q * r) * r + r + 1.0f;
  // Two factors, because 2^n itself may be outside the range where the result is not.
  const std::int32_t half = exponent >> 1;
  return y * power_of_two(half) * power_of_two(exponent - half);
}

// For x <= 0 with |x| small enough that the result is a normal number or negligible: results below 2^-126 are 0.
// One multiplication less than fast_exp and the same accuracy; the softmax's inner loop.
WEFT_INLINE float fast_exp_negative(float x) {
  using namespace fast_math;
  const float clamped = x < -87.0f ? -87.0f : x;
  const float shifted = clamped * log2_e + magic;
  const float n = shifted - magic;
  const std::int32_t exponent = std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(magic);
  const float r = (clamped - n * ln2_high) - n * ln2_low;
  float q = 0.001381493077f;
  q = q * r + 0.008368767726f;
  q = q * r + 0.04166838852f;
  q = q * r + 0.1666652022f;
  q = q * r + 0.4999999341f;
  const float y = ((q * r) * r + r + 1.0f) * power_of_two(exponent);
  return x < -87.0f ? 0.0f : y;
}

WEFT_INLINE float fast_log(float x) {
  using namespace fast_math;
  const bool tiny = x < 1.17549435e-38f;  // denormal: scale up first
  const float scaled = tiny ? x * 8388608.0f : x;
  const std::int32_t bits = std::bit_cast<std::int32_t>(scaled);
  // scaled = 2^e m with m in [sqrt(1/2), sqrt(2))
  const std::int32_t e = (bits - 0x3f3504f3) >> 23;
  const float f = std::bit_cast<float>(bits - (e << 23)) - 1.0f;
  float p = 0.08707657457f;
  p = p * f - 0.1426871937f;
  p = p * f + 0.1491270696f;
  p = p * f - 0.1657729388f;
  p = p * f + 0.1996323056f;
  p = p * f - 0.2500135113f;
  p = p * f + 0.3333390679f;
  const float n = static_cast<float>(e - (tiny ? 23 : 0));
  const float square = f * f;
  float y = p * (square * f) + n * ln2_low;
  y = y - 0.5f * square;
  y = (y + f) + n * ln2_high;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  y = x == infinity ? x : y;
  y = x == 0.0f ? -infinity : y;
  y = x < 0.0f ? std::numeric_limits<float>::quiet_NaN() : y;
  return x != x ? x : y;
}

WEFT_INLINE float fast_tanh(float x) {
  const float z = x * x;
  float p = -0.005705394072f;
  p = p * z + 0.02063944153f;
  p = p * z - 0.05373981645f;
  p = p * z + 0.1333144323f;
  p = p * z - 0.3333328197f;
  const float small = (p * z) * x + x;
  const float magnitude = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & 0x7fffffffu);
  const float large = 1.0f - 2.0f / (fast_exp(2.0f * magnitude) + 1.0f);
  const float signed_large =
      std::bit_cast<float>(std::bit_cast<std::uint32_t>(large) | (std::bit_cast<std::uint32_t>(x) & 0x80000000u));
  return magnitude < 0.625f ? small : signed_large;
}

// Below -88.7, where exp(-x) overflows, the result is 0 (exact: less than 3e-39).
WEFT_INLINE float fast_sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }

WEFT_INLINE double fast_exp(double x) { return std::exp(x); }
WEFT_INLINE double fast_exp_negative(double x) { return std::exp(x); }
WEFT_INLINE double fast_log(double x) { return std::log(x); }
WEFT_INLINE double fast_tanh(double x) { return std::tanh(x); }
WEFT_INLINE double fast_sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

}  // namespace weft::WEFT_ISA
