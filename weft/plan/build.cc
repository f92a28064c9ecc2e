#include "weft/plan/build.h"

#include "weft/plan/check.h"
#include "weft/plan/orders/order.h"
#include "weft/plan/passes/expand.h"

namespace weft {

Plan build_plan(const Module& module, const PlanOptions& options) {
  Plan plan = expand(module, plain_order(options.micro_batches), options);
  require_valid(plan, "expansion");
  return plan;
}

}  // namespace weft
