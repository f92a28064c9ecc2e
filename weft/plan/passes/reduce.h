// Reductions: what ranks compute apart is added up.
//
// Contract. Takes what is summed over whom from the values: losses over the ranks that have the tokens, gradients over the
// ranks that hold the same parameter (its placement). Inserts, after the backward passes and before the updates: one node
// for the losses; one per unit for its gradients, the last unit first, since its gradients are ready first; where gradients
// are clipped, the sum of their squares, in which each element of the model counts once, and the sum over the ranks that
// hold different elements. Plans that evaluate get the losses alone.
#pragma once

#include "weft/model/module.h"
#include "weft/plan/plan.h"

namespace weft {

Plan reduce(const Plan& plan, const Module& module);

}  // namespace weft
