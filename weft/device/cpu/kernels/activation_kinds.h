// The activations and their derivatives for one element, in acc. NaN passes through every one of them.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "weft/device/cpu/kernels/fast_math.h"
#include "weft/device/operations/activation.h"

namespace weft::WEFT_ISA {

// The sigmoid as activations use it: a shorter exp than fast_sigmoid's, for arguments kept within [-87, 88] (beyond
// them the results are below 7e-39 or 1 anyway). Within 3 ulp; NaN stays NaN.
WEFT_INLINE float gate_of(float x) {
  using namespace fast_math;
  float z = x < -88.0f ? 88.0f : -x;
  z = z < -87.0f ? -87.0f : z;
  const float shifted = z * log2_e + magic, n = shifted - magic;
  const float r = (z - n * ln2_high) - n * ln2_low;
  float q = 0.001381493077f;  // the polynomial of fast_exp
  q = q * r + 0.008368767726f;
  q = q * r + 0.04166838852f;
  q = q * r + 0.1666652022f;
  q = q * r + 0.4999999341f;
  q = q * r + 1.0f;
  const float y = q * r + 1.0f;
  // 2^n y: the low bits of `shifted` are n, and the exponent of the result is normal.
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(y) + (std::bit_cast<std::uint32_t>(shifted) << 23);
  return 1.0f / (1.0f + std::bit_cast<float>(bits));
}
WEFT_INLINE double gate_of(double x) { return fast_sigmoid(x); }

// swiglu, clamped_swiglu and quick_geglu are one formula:  g sigmoid(alpha g) (u + offset)  of clamped g and u.
template <class Acc, bool clamps>
struct GatedKind {
  Acc limit, alpha, offset;

  static GatedKind of(const ActivationSpec& spec) {
    const bool quick = spec.kind == ActivationKind::quick_geglu;
    return {static_cast<Acc>(spec.limit), quick ? static_cast<Acc>(spec.alpha) : Acc{1},
            quick ? static_cast<Acc>(spec.offset) : Acc{0}};
  }

  WEFT_INLINE Acc clamped_gate(Acc g) const { return clamps && g > limit ? limit : g; }
  WEFT_INLINE Acc clamped_linear(Acc u) const {
    const Acc low = clamps && u > limit ? limit : u;
    return clamps && low < -limit ? -limit : low;
  }
  WEFT_INLINE Acc value(Acc g, Acc u) const {
    const Acc gate = clamped_gate(g);
    return gate * gate_of(alpha * gate) * (clamped_linear(u) + offset);
  }
  // d: the gradient of the value. Beyond a clamp there is none; at its bound there is.
  WEFT_INLINE void gradient(Acc g, Acc u, Acc d, Acc& value, Acc& dg, Acc& du) const {
    const Acc x = clamped_gate(g), linear = clamped_linear(u) + offset;
    const Acc s = gate_of(alpha * x), gate = x * s;
    value = gate * linear;
    dg = d * linear * (s + alpha * gate * (Acc{1} - s));
    du = d * gate;
    if constexpr (clamps) {
      dg = g > limit ? Acc{0} : dg;
      du = u > limit ? Acc{0} : du;
      du = u < -limit ? Acc{0} : du;
    }
  }
};

// body(kind) for the gated kinds.
template <class Acc, class Body>
void with_gated_kind(const ActivationSpec& spec, const Body& body) {
  if (spec.kind != ActivationKind::swiglu && spec.limit > 0)
    body(GatedKind<Acc, true>::of(spec));
  else
    body(GatedKind<Acc, false>::of(spec));
}

struct SquaredRelu {
  template <class Acc>
  WEFT_INLINE static Acc value(Acc x) {
    const Acc r = x < 0 ? Acc{0} : x;
    return r * r;
  }
  template <class Acc>
  WEFT_INLINE static void gradient(Acc x, Acc& value, Acc& slope) {
    const Acc r = x < 0 ? Acc{0} : x;
    value = r * r;
    slope = 2 * r;
  }
};

// x / 2 (1 + tanh(z)) = x sigmoid(2 z),  z = sqrt(2 / pi) (x + 0.044715 x^3)
struct GeluTanh {
  static constexpr double twice = 1.5957691216057307118, cubic = 0.044715;
  template <class Acc>
  WEFT_INLINE static Acc value(Acc x) {
    return x * gate_of(static_cast<Acc>(twice) * x * (Acc{1} + static_cast<Acc>(cubic) * (x * x)));
  }
  template <class Acc>
  WEFT_INLINE static void gradient(Acc x, Acc& value, Acc& slope) {
    const Acc square = x * x;
    const Acc s = gate_of(static_cast<Acc>(twice) * x * (Acc{1} + static_cast<Acc>(cubic) * square));
    value = x * s;
    slope = s + value * (Acc{1} - s) * static_cast<Acc>(twice) * (Acc{1} + static_cast<Acc>(3 * cubic) * square);
  }
};

// x Phi(x), Phi the normal distribution.
struct GeluErf {
  static constexpr double inverse_root = 0.39894228040143267794;  // 1 / sqrt(2 pi)
  WEFT_INLINE static double distribution(double x, double& density) {
    density = inverse_root * std::exp(-0.5 * x * x);
    return 0.5 * std::erfc(-0.70710678118654752440 * x);
  }
  // Phi(-|x|) = density * P(t), t = 1 / (1 + 0.3 |x|): a fit of our own, relative error below 1e-7 up to |x| = 15,
  // beyond which the density is 0.
  WEFT_INLINE static float distribution(float x, float& density) {
    const float magnitude = x < 0 ? -x : x;
    const float t = 1.0f / (1.0f + 0.3f * magnitude);
    density = static_cast<float>(inverse_root) * fast_exp(-0.5f * x * x);
    float p = 0.094840032f;
    p = p * t - 0.417995045f;
    p = p * t + 0.561913616f;
    p = p * t - 0.180353116f;
    p = p * t + 0.350411653f;
    p = p * t + 0.239833527f;
    p = p * t + 0.305076459f;
    p = p * t + 0.299571915f;
    p = p * t + 1.51455822e-5f;
    const float tail = density * p;
    return x < 0 ? tail : 1.0f - tail;
  }
  template <class Acc>
  WEFT_INLINE static Acc value(Acc x) {
    Acc density;
    return x * distribution(x, density);
  }
  template <class Acc>
  WEFT_INLINE static void gradient(Acc x, Acc& value, Acc& slope) {
    Acc density;
    const Acc phi = distribution(x, density);
    value = x * phi;
    slope = phi + x * density;
  }
};

}  // namespace weft::WEFT_ISA
