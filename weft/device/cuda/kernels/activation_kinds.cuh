// The activations and their derivatives for one element. NaN passes through every one of them.
#pragma once

#include "weft/device/operations/activation.h"

namespace weft::cuda {

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// swiglu, clamped_swiglu and quick_geglu are one formula:  g sigmoid(alpha g) (u + offset)  of clamped g and u.
struct Gated {
  float limit, alpha, offset;
  bool clamps;

  static Gated of(const ActivationSpec& spec) {
    const bool quick = spec.kind == ActivationKind::quick_geglu;
    return {static_cast<float>(spec.limit), quick ? static_cast<float>(spec.alpha) : 1.0f,
            quick ? static_cast<float>(spec.offset) : 0.0f, spec.kind != ActivationKind::swiglu && spec.limit > 0};
  }
  __device__ float clamped_gate(float g) const { return clamps && g > limit ? limit : g; }
  __device__ float clamped_linear(float u) const {
    const float low = clamps && u > limit ? limit : u;
    return clamps && low < -limit ? -limit : low;
  }
  __device__ float value(float g, float u) const {
    const float gate = clamped_gate(g);
    return gate * sigmoid(alpha * gate) * (clamped_linear(u) + offset);
  }
  // d: the gradient of the value. Beyond a clamp there is none; at its bound there is.
  __device__ void gradient(float g, float u, float d, float& value, float& dg, float& du) const {
    const float x = clamped_gate(g), linear = clamped_linear(u) + offset;
    const float s = sigmoid(alpha * x), gate = x * s;
    value = gate * linear;
    dg = clamps && g > limit ? 0.0f : d * linear * (s + alpha * gate * (1.0f - s));
    du = clamps && (u > limit || u < -limit) ? 0.0f : d * gate;
  }
};

struct SquaredRelu {
  __device__ static float value(float x) {
    const float r = x < 0 ? 0.0f : x;
    return r * r;
  }
  __device__ static void gradient(float x, float& value, float& slope) {
    const float r = x < 0 ? 0.0f : x;
    value = r * r;
    slope = 2 * r;
  }
};

// x / 2 (1 + tanh(z)) = x sigmoid(2 z),  z = sqrt(2 / pi) (x + 0.044715 x^3)
struct GeluTanh {
  static constexpr float twice = 1.5957691216057307f, cubic = 0.044715f;
  __device__ static float value(float x) { return x * sigmoid(twice * x * (1.0f + cubic * (x * x))); }
  __device__ static void gradient(float x, float& value, float& slope) {
    const float square = x * x, s = sigmoid(twice * x * (1.0f + cubic * square));
    value = x * s;
    slope = s + value * (1.0f - s) * twice * (1.0f + 3 * cubic * square);
  }
};

// x Phi(x), Phi the normal distribution.
struct GeluErf {
  __device__ static float value(float x) { return x * normcdff(x); }
  __device__ static void gradient(float x, float& value, float& slope) {
    const float phi = normcdff(x);
    value = x * phi;
    slope = phi + x * 0.39894228040143268f * expf(-0.5f * x * x);
  }
};

}  // namespace weft::cuda
