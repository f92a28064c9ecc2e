// The optimizer and clipping by global norm, as pieces of the module: an update is a node like any other.
#pragma once

#include "weft/model/config.h"
#include "weft/model/module.h"
#include "weft/optim/optimizer.h"

namespace weft {

// Adds the states (and the lower bits of bf16 weights) of every parameter tensor, and the pieces: `clip`, which writes the
// step's numbers with norm, clip factor and finite flag (Module::update_values), and one update per unit, which reads
// these and its gradients. The sum of squares that `clip` reads is computed by the plan (weft/plan/passes/reduce.h).
// Without clipping there is no norm: an update waits only for its own gradients and for the loss, whose finite flag
// decides whether weights change.
void add_updates(Module& module, const Precision& precision, const OptimizerSpec& spec);

}  // namespace weft
