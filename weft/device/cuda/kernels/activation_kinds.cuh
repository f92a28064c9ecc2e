// The activations and their derivatives for one element. NaN passes through every one of them.
#pragma once

#include "weft/device/cuda/kernels/quick.cuh"
#include "weft/device/operations/activation.h"

namespace weft::cuda {

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// swiglu, clamped_swiglu and quick_geglu are one formula:  g sigmoid(alpha g) (u + offset)  of clamped g and u. plain: swiglu,
// where alpha is 1 and there is neither offset nor clamp. quick: with the short sigmoid, for results in bf16.
template <bool plain, bool quick>
struct Gated {
  float limit, alpha, offset;
  bool clamps;

  __device__ float clamped_gate(float g) const { return !plain && clamps && g > limit ? limit : g; }
  __device__ float clamped_linear(float u) const {
    const float low = !plain && clamps && u > limit ? limit : u;
    return !plain && clamps && low < -limit ? -limit : low;
  }
  __device__ float linear(float u) const { return plain ? u : clamped_linear(u) + offset; }
  __device__ float share(float gate) const {
    const float x = plain ? gate : alpha * gate;
    return quick ? quick_sigmoid(x) : sigmoid(x);
  }
  __device__ float value(float g, float u) const {
    const float gate = clamped_gate(g);
    return gate * share(gate) * linear(u);
  }
  // d: the gradient of the value. Beyond a clamp there is none; at its bound there is.
  __device__ void gradient(float g, float u, float d, float& value, float& dg, float& du) const {
    const float x = clamped_gate(g), up = linear(u), s = share(x), gate = x * s;
    const float slope = plain ? s + gate * (1.0f - s) : s + alpha * gate * (1.0f - s);
    value = gate * up;
    dg = !plain && clamps && g > limit ? 0.0f : d * up * slope;
    du = !plain && clamps && (u > limit || u < -limit) ? 0.0f : d * gate;
  }
};

// body(kind) for an activation with a gate, of elements stored as T.
template <class T, class Body>
void with_gated_kind(const ActivationSpec& spec, const Body& body) {
  constexpr bool quick = sizeof(T) == 2;
  if (spec.kind == ActivationKind::swiglu) return body(Gated<true, quick>{0, 1, 0, false});
  const bool shifted = spec.kind == ActivationKind::quick_geglu;
  body(Gated<false, quick>{static_cast<float>(spec.limit), shifted ? static_cast<float>(spec.alpha) : 1.0f,
                           shifted ? static_cast<float>(spec.offset) : 0.0f, spec.limit > 0});
}

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
