// Experts' backward dispatch beside their weight gradients: gradients of tokens go back to their ranks first.
//
// Contract. In each unit's backward pass, an exchange goes directly after the last compute node that it depends on, and
// what does not wait for the exchange goes before what does. So the weight gradients of the experts hide dispatch', and
// the shared expert hides combine':
//
//   before:  join', combine' | experts', experts' weights, shared', its weights, dispatch' | route', ...
//   after:   join', combine' | shared', its weights, experts', dispatch' | experts' weights, route', ...
//
// Changes only the order of nodes within a unit's pass; `add`s keep their numbers and their order. Runs after
// delay_weight_gradients, which leaves before dispatch' what can hide it. Not for woven plans, in which the other
// micro-batch hides both exchanges.
#pragma once

#include "weft/plan/plan.h"

namespace weft {

Plan overlap_dispatch_backward(const Plan& plan);

}  // namespace weft
