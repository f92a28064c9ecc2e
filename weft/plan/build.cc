#include "weft/plan/build.h"

#include "weft/base/error.h"
#include "weft/plan/check/check.h"
#include "weft/plan/orders/order.h"
#include "weft/plan/passes/delay_weight_gradients.h"
#include "weft/plan/passes/expand.h"
#include "weft/plan/passes/overlap_dispatch_backward.h"
#include "weft/plan/passes/overlap_tensor.h"
#include "weft/plan/passes/overlap_updates.h"
#include "weft/plan/passes/recompute.h"
#include "weft/plan/passes/reduce.h"
#include "weft/plan/passes/shard.h"
#include "weft/plan/passes/transfer.h"
#include "weft/plan/passes/wait_for_counts.h"
#include "weft/plan/passes/weave.h"

namespace weft {

namespace {

PassOrder order_of(const Module& module, const PlanOptions& options, bool woven) {
  if (options.block > 1) return block_order(options.micro_batches, options.block);
  if (options.kind != PlanKind::evaluate) return pipeline_order(pipeline_stage(module, options, woven));
  PassOrder order;
  for (int m = 0; m < options.micro_batches; ++m)
    for (int chunk = 0; chunk < static_cast<int>(module.chunks.size()); ++chunk)
      order.push_back({ModelPass::Direction::forward, m, chunk});
  return order;
}

}  // namespace

PipelineStage pipeline_stage(const Module& module, const PlanOptions& options, bool woven) {
  PipelineStage stage;
  stage.stages = module.layout.stage_count();
  stage.stage = module.layout.stage();
  stage.chunks = static_cast<int>(module.chunks.size());
  stage.micro_batches = options.micro_batches;
  stage.kind = options.order;
  stage.group = options.micro_batch_group;
  stage.woven = woven;
  stage.weights_after_passes = options.delay_weight_gradients;
  return stage;
}

Plan build_plan(const Module& module, const PlanOptions& options) {
  const bool stages = module.layout.stage_count() > 1;
  WEFT_CHECK(options.block >= 1 && (options.block == 1 || (!options.weave && !stages)), "blocks of {} micro-batches",
             options.block);
  const bool weaves = options.kind != PlanKind::evaluate && options.weave;
  PlanOptions expanded = options;
  // Of what the weave pairs, weight gradients hide exchanges, so they stay in their place until it moves them.
  if (weaves && options.order == OrderKind::zero_bubble) expanded.order = OrderKind::one_f_one_b;
  Plan plan = expand(module, order_of(module, expanded, false), options);
  plan = wait_for_counts(plan, module.layout);
  if (options.kind != PlanKind::evaluate && options.recomputation.any())
    plan = recompute(plan, module, options.recomputation);
  plan = reduce(plan, module);
  // Divided parameters are not gathered yet, nor are their gradients reduced; between stages nothing travels yet.
  const bool complete = !module.divided() && !stages;
  if (complete) require_valid(plan, "expansion");
  if (options.kind != PlanKind::evaluate && options.delay_weight_gradients) {
    plan = delay_weight_gradients(plan, stages ? chunks_of_units(module) : std::vector<int>{});
    if (complete) require_valid(plan, "delay_weight_gradients");
  }
  if (weaves) {
    plan = weave(plan, order_of(module, options, true), chunks_of_units(module),
                 {.early_attention_backward = options.early_attention_backward,
                  .weights_after_passes = stages && options.delay_weight_gradients});
    if (complete) require_valid(plan, "weave");
    plan = overlap_tensor(plan, stages ? chunks_of_units(module) : std::vector<int>{});
    if (complete) require_valid(plan, "overlap_tensor");
  } else if (options.kind != PlanKind::evaluate && options.overlap_dispatch_backward) {
    plan = overlap_dispatch_backward(plan);
    if (complete) require_valid(plan, "overlap_dispatch_backward");
  }
  if (stages) {
    plan = transfer(plan, module, order_of(module, options, weaves));
    if (!module.divided()) require_valid(plan, "transfer");
  }
  if (module.divided()) {
    plan = shard(plan, module, options);
    require_valid(plan, "shard");
  }
  if (options.kind == PlanKind::train && options.overlap_updates) {
    plan = overlap_updates(plan);
    require_valid(plan, "overlap_updates");
  }
  return plan;
}

}  // namespace weft
