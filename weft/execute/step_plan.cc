#include "weft/execute/step_plan.h"

#include "weft/optim/updates.h"

namespace weft {

StepPlan plan_step(const StepOptions& options, const Pricer& pricer) {
  StepPlan step;
  ModelConfig config = options.config;
  if (options.module.keep_logits) config.experts.balance.capacity_factor = 0;
  step.module = build_module(config, options.module);
  if (options.plan.kind != PlanKind::evaluate) add_updates(step.module, options.module.precision, options.optimizer);
  if (options.plan.kind == PlanKind::gradients) step.module.states.clear();
  step.plan = build_plan(step.module, options.plan);
  step.plan.pattern = options.config.pattern;
  if (pricer) price(step.plan, step.module, pricer);
  step.memory = plan_memory(step.plan);
  return step;
}

}  // namespace weft
