// Recomputation: the backward pass computes again what the forward pass did not keep.
//
// Contract. Takes a plan in the plain order, after the waits for counts. For every stretch that Recomputation chooses, in every
// micro-batch, adds nodes of phase `recompute`: the forward code of the pieces (without statistics) whose results the stretch's
// backward pass reads, and of the pieces that these need in turn; nothing else, and nothing twice. They read the stretch's input
// and what else is kept, and write instances of their own (#1), which backward reads instead. So what the forward pass wrote
// (#0) dies there. What nobody reads becomes scratch of the node that writes it.
//
// Never computed again: what forward adds to (counts and losses), what it sums over ranks, and counts that the host has waited
// for, which are kept. So exchanges of rows repeat without another wait.
//
// A node is put directly before its first user, but one that exchanges comes no later than its unit's first exchange in backward,
// so that both are done beside the same computation. Contributions and the order of other nodes stay the same.
#pragma once

#include "weft/model/module.h"
#include "weft/plan/plan.h"
#include "weft/plan/recomputation.h"

namespace weft {

Plan recompute(const Plan& plan, const Module& module, const Recomputation& how);

// By node: of nodes that compute again, the unit in whose backward pass they do; of others, their own unit. The two differ where
// a stretch has several units.
std::vector<int> units_of_passes(const Plan& plan);

}  // namespace weft
