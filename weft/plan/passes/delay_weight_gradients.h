// Delayed weight gradients: input gradients, which other nodes wait for, go first.
//
// Contract. Moves weight gradients to the end of their unit's backward pass, so that input gradients, and what waits
// for them, do not wait for weights. Those before the unit's last exchange stay: they hide it. Between the stages of a
// pipeline, to the end of the backward pass over their chunk: then what the pass sends waits for none of them. Changes only
// the order of compute nodes within a pass; `add`s keep their numbers and their order. Runs before weave.
#pragma once

#include <vector>

#include "weft/plan/plan.h"

namespace weft {

// unit_chunks: by unit, the chunk that it belongs to; empty: weight gradients stay in their unit.
Plan delay_weight_gradients(const Plan& plan, const std::vector<int>& unit_chunks = {});

}  // namespace weft
