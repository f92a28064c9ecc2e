// Activations between the matmuls of an MLP. The contracts that hold for every operation: weft/device/operations.h.
#pragma once

#include <cstdint>

#include "weft/device/tensor.h"

namespace weft {

enum class ActivationKind : std::uint8_t { swiglu, squared_relu, gelu, gelu_erf, clamped_swiglu, quick_geglu };
// The definition of an activation, one for every kernel that applies it.
//   swiglu        silu(g) u                       gelu          tanh form      gelu_erf  exact
//   squared_relu  max(x, 0)^2                     clamped_*     g = min(g, limit), u = clamp(u, -limit, limit)
//   quick_geglu   g sigmoid(alpha g) (u + offset), clamped the same way
struct ActivationSpec {
  ActivationKind kind = ActivationKind::swiglu;
  double limit = 0, alpha = 1.702, offset = 0;  // limit 0: none
  bool gated() const {
    return kind == ActivationKind::swiglu || kind == ActivationKind::clamped_swiglu ||
           kind == ActivationKind::quick_geglu;
  }
};
// y [R, f] = act(x) * scale [R];  gated: x [R, 2 f] = [g | u], else x [R, f]. scale: acc, may be absent.
struct Activation {
  ActivationSpec spec;
  Tensor x, y, scale, rows_in_use;
};
// dx [like x], and where scale is given dscale [R] = sum over f of dy * act(x).
struct ActivationBackward {
  ActivationSpec spec;
  Tensor x, scale, dy, dx, dscale, rows_in_use;
};

// y = x * sigmoid(gate): a row of x holds parts of equal width, gate [R, parts] one number per part (of x's dtype). y may
// be x's memory.
struct SigmoidGate {
  Tensor x, gate, y;
};
// dx = dy * sigmoid(gate);  dgate = sum over the part of dy * x * sigmoid'(gate). dx may be dy's memory, dgate gate's.
struct SigmoidGateBackward {
  Tensor x, gate, dy, dx, dgate;
};

}  // namespace weft
