// From a module to a checked plan: the list of passes, in order.
#pragma once

#include "weft/model/module.h"
#include "weft/plan/orders/order.h"
#include "weft/plan/plan.h"
#include "weft/plan/recomputation.h"

namespace weft {

struct PlanOptions {
  PlanKind kind = PlanKind::train;
  int micro_batches = 1;
  bool weave = false;  // hide exchanges behind the other micro-batch
  bool delay_weight_gradients = false;
  bool overlap_dispatch_backward = false;  // without weave: hide experts' backward dispatch behind their weights
  bool early_attention_backward = false;   // of the weave: backward before the experts' forward, to free memory sooner
  Recomputation recomputation;
  bool overlap_updates = false;  // leave a step's updates to the next one, beside its forward pass
  // Where parameters are divided over ranks (Module::shards):
  bool gather_by_piece = true;  // gathers what a piece uses; otherwise all that its unit uses
  // Elements gathered before their first use, at most, or those of one residency if that has more; -1: those of the mean
  // unit.
  std::int64_t gather_ahead = -1;
  bool two_buffers = false;  // instead: at most two units of each direction are gathered at a time
  // Micro-batches whose forward passes all run before their backward passes. Above 1 only in the oracle of a layout
  // with that many data shards: a block here corresponds to micro-batch m of all shards there.
  int block = 1;
  OrderKind order = OrderKind::automatic;  // of passes over the chunks of a stage
  int micro_batch_group = 0;               // PipelineStage::group
};

// What the order of a module's stage depends on. woven: as it is run, not as it is expanded.
PipelineStage pipeline_stage(const Module& module, const PlanOptions& options, bool woven);

// BugError if a pass produces a plan that the checker rejects.
Plan build_plan(const Module& module, const PlanOptions& options);

}  // namespace weft
