// AdamW and clipping by global norm, as pieces of the module: an update is a node like any other.
#pragma once

#include "weft/model/config.h"
#include "weft/model/module.h"

namespace weft {

struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double clip = 1.0;       // 0: no clipping
  bool decay_all = false;  // also one-dimensional parameters and biases
};

// Adds states m, v (and a master copy, where the model's dtype is too coarse) for every parameter tensor, and the
// pieces: norm (sum of squares of all gradients), clip (norm, clip factor, finite flag), one update a unit.
void add_updates(Module& module, const Precision& precision, const AdamOptions& options);

}  // namespace weft
