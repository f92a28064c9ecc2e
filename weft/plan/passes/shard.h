// Divided parameters: gathered where they are used, their gradients reduced where they are complete.
//
// Contract. Takes a plan of a module with shards, after delay and weave and before overlap_updates, in which nodes use whole parameters and add to
// partial gradients. Inserts, without changing the order of what is there:
//
//   gather    Before the first node of a residency: all parts, from all ranks, into an instance of the whole parameter.
//             A residency is what one direction of one micro-batch uses of one unit (optim_grads_params, and every plan
//             that evaluates) or what the step uses (optim, optim_grads). Several of one parameter may overlap. A gather
//             comes as early as the bound on what is gathered ahead allows, in the order of first uses.
//   release   Of each parameter, after the last node of a residency that uses it.
//   reduce    After the last contribution to a partial gradient, of a micro-batch (optim_grads, optim_grads_params) or
//             of the step (optim): the sum over ranks, of which every rank keeps its part.
//   add       Where a step reduces more than once: adds that sum to the kept part of the gradient, in the order of the
//             micro-batches.
//
// Where instances of the optimizer divide what they hold (Module::shards[1]) the same is done to that: its residency is the
// step, its users are the gathers above, and its gradients are complete after the last micro-batch.
//
// Gathers and releases are on the gather lane; reductions, and the additions after them, on the reduce lane.
#pragma once

#include "weft/model/module.h"
#include "weft/plan/build.h"
#include "weft/plan/plan.h"

namespace weft {

Plan shard(const Plan& plan, const Module& module, const PlanOptions& options);

// Of the units that have parameters that are divided, in the first division, the mean of their elements, rounded up: what is
// gathered ahead unless PlanOptions::gather_ahead says otherwise. 0: nothing is divided.
std::int64_t elements_of_mean_unit(const Module& module);

}  // namespace weft
