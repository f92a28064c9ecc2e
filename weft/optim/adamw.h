// AdamW and clipping by global norm, as pieces of the module: an update is a node like any other.
#pragma once

#include "weft/model/config.h"
#include "weft/model/module.h"

namespace weft {

struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double clip = 1.0;       // 0: no clipping, and no norm
  bool decay_all = false;  // also one-dimensional parameters and biases
};

// How gradients are spread over ranks. Losses are scaled by the number of all tokens, so that sums are means.
struct GradientLayout {
  std::int64_t data_shards = 1;    // ranks of group "dp": they hold the same dense parameters
  std::int64_t expert_ranks = 1;   // ranks of group "ep": they hold different experts
  std::int64_t expert_shards = 1;  // ranks of group "edp": they hold the same experts
};

// Adds the reduction of the loss alone, for plans that evaluate; where the plan trains, of the router's losses too.
void add_loss_reduction(Module& module, const GradientLayout& layout, bool trains = false);

// Adds states m, v (and the lower bits of bf16 weights) for every parameter tensor, and the pieces: reductions of loss
// and gradients (dense over dp, experts over edp, one node a unit, the last unit first, since its gradients are ready
// first), norm (sum of squares; the experts' part summed over ep, so that each element
// counts once), clip (the step's numbers with norm, clip factor and finite flag: Module::update_values), one update a
// unit, which reads these and its gradients. Without clipping there is no norm: an update waits for its own gradients and
// for the loss, whose finite flag alone decides whether weights move.
void add_updates(Module& module, const Precision& precision, const AdamOptions& options,
                 const GradientLayout& layout = {});

}  // namespace weft
