#include "weft/plan/build.h"

#include "weft/plan/check.h"
#include "weft/plan/orders/order.h"
#include "weft/plan/passes/delay_weight_gradients.h"
#include "weft/plan/passes/expand.h"
#include "weft/plan/passes/weave.h"

namespace weft {

Plan build_plan(const Module& module, const PlanOptions& options) {
  Plan plan = expand(module, plain_order(options.micro_batches), options);
  require_valid(plan, "expansion");
  if (options.kind != PlanOptions::Kind::evaluate && options.delay_weight_gradients) {
    plan = delay_weight_gradients(plan);
    require_valid(plan, "delay_weight_gradients");
  }
  if (options.kind != PlanOptions::Kind::evaluate && options.weave) {
    plan = weave(plan);
    require_valid(plan, "weave");
  }
  return plan;
}

}  // namespace weft
