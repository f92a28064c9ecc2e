// The choice of an optimizer: everything about it that does not change from step to step.
#pragma once

#include <cstdint>
#include <span>

#include "weft/model/content.h"

namespace weft {

enum class OptimizerKind : std::uint8_t { adam, sgd };

struct OptimizerSpec {
  OptimizerKind kind = OptimizerKind::adam;
  double clip = 1.0;                             // of the gradients' global norm; 0: no clipping, and no norm
  bool decay_all = false;                        // also one-dimensional parameters and biases
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;  // of Adam
  double momentum = 0.9;                         // of SGD
};

// What it keeps of every trained parameter from step to step, beside the weight.
std::span<const Content> states_of(const OptimizerSpec& spec);

}  // namespace weft
