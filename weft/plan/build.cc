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
#include "weft/plan/passes/wait_for_counts.h"
#include "weft/plan/passes/weave.h"

namespace weft {

Plan build_plan(const Module& module, const PlanOptions& options) {
  WEFT_CHECK(options.block >= 1 && (options.block == 1 || !options.weave), "blocks of {} micro-batches", options.block);
  Plan plan = expand(module, block_order(options.micro_batches, options.block), options);
  plan = wait_for_counts(plan, module.layout);
  if (options.kind != PlanKind::evaluate && options.recomputation.any())
    plan = recompute(plan, module, options.recomputation);
  plan = reduce(plan, module);
  // Divided parameters are not gathered yet, nor are their gradients reduced.
  const bool complete = !module.divided();
  if (complete) require_valid(plan, "expansion");
  if (options.kind != PlanKind::evaluate && options.delay_weight_gradients) {
    plan = delay_weight_gradients(plan);
    if (complete) require_valid(plan, "delay_weight_gradients");
  }
  if (options.kind != PlanKind::evaluate && options.weave) {
    plan = weave(plan, options.early_attention_backward);
    if (complete) require_valid(plan, "weave");
    plan = overlap_tensor(plan);
    if (complete) require_valid(plan, "overlap_tensor");
  } else if (options.kind != PlanKind::evaluate && options.overlap_dispatch_backward) {
    plan = overlap_dispatch_backward(plan);
    if (complete) require_valid(plan, "overlap_dispatch_backward");
  }
  if (!complete) {
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
