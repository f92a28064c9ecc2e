// The numbers of a step, the global norm, AdamW and SGD. The contracts that hold for every operation: weft/device/operations.h.
#pragma once

#include <cstdint>
#include <span>

#include "weft/device/operations/store.h"
#include "weft/device/tensor.h"

namespace weft {

// Where a training step keeps the numbers that change from step to step: f64 [count] in device memory. The host writes
// the first ones before the step; the device computes the others.
struct StepValues {
  enum Index : int {
    learning_rate,
    weight_decay,
    correction1,
    correction2,        // 1 - beta^t
    router_loss_scale,  // one micro-batch's share of the global batch
    gradient_norm,
    clip_factor,
    finite,  // written by ClipFactor
    count
  };
};
// out [1] f64 (+)= sum of squares over all tensors, each added up in f64 in a fixed order.
struct SumOfSquares {
  std::span<const Tensor> x;
  Tensor out;
  Store store = Store::write;
};
// sum: f64 [n], parts of the sum of squares (absent: 0). norm = sqrt(their sum), factor = min(1, limit / (norm + 1e-6))
// (limit 0: 1), finite = norm is finite and so is loss.
struct ClipFactor {
  Tensor sum, loss, step_values;
  double limit = 0;
};
// A part of the parameters, all of one shape. The weight is updated; for bf16 weights, the float that each forms
// together with its remainder (i16; split_float in weft/base/dtype.h).
struct AdamSlab {
  Tensor weight, remainder, m, v, gradient;
  bool decay = true;
};
// AdamW (bias-corrected, eps outside the root, decoupled decay):
//   g = clip_factor * gradient;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   w -= lr * (m / c1 / (sqrt(v / c2) + eps) + decay * w)
// Does nothing when step_values[finite] is 0.
struct AdamW {
  std::span<const AdamSlab> slabs;
  Tensor step_values;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
};
// As AdamSlab. momentum: acc, absent where its factor is 0.
struct SgdSlab {
  Tensor weight, remainder, momentum, gradient;
  bool decay = true;
};
// Gradient descent with momentum; decay is part of the gradient (L2), and so of the momentum:
//   g = clip_factor * gradient + decay * w;  b = momentum b + g;  w -= lr * b
// A momentum of zeros makes the first step b = g. Does nothing when step_values[finite] is 0.
struct Sgd {
  std::span<const SgdSlab> slabs;
  Tensor step_values;
  double momentum = 0.9;
};

}  // namespace weft
