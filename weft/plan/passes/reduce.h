// Reductions: sums over ranks.
//
// Contract. The values determine what is summed over which ranks: losses over the data ranks,
// gradients over the ranks that hold the same parameter (its placement). Inserts, after the backward passes and before
// the updates: one node for the losses; one per unit for its gradients, the last unit first, since its gradients are
// ready first; if gradients are clipped, the sum of their squares, in which each element of the model counts once, and
// its sum over the ranks that hold different elements. Plans that evaluate get only the losses.
#pragma once

#include "weft/model/module.h"
#include "weft/plan/plan.h"

namespace weft {

Plan reduce(const Plan& plan, const Module& module);

}  // namespace weft
