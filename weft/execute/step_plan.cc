#include "weft/execute/step_plan.h"

#include <algorithm>
#include <map>

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

LayoutPlans::LayoutPlans(const StepOptions& options, const Pricer& pricer) : layout_(options.module.layout) {
  std::map<int, std::int32_t> known;  // by class
  for (int r = 0; r < layout_.ranks(); ++r) {
    const auto [at, is_new] = known.try_emplace(layout_.class_of(RankId(r)), static_cast<std::int32_t>(steps_.size()));
    if (is_new) {
      StepOptions there = options;
      there.module.layout = layout_.seen_from(RankId(r));
      steps_.push_back(std::make_unique<StepPlan>(plan_step(there, pricer)));
    }
    plan_of_.push_back(at->second);
  }
}

std::int64_t LayoutPlans::ranks_in(std::size_t step) const {
  return std::count(plan_of_.begin(), plan_of_.end(), static_cast<std::int32_t>(step));
}

std::vector<int> LayoutPlans::stages() const {
  std::vector<int> stages;
  if (layout_.stage_count() == 1) return stages;
  for (int r = 0; r < layout_.ranks(); ++r) stages.push_back(layout_.seen_from(RankId(r)).stage());
  return stages;
}

RankPlans LayoutPlans::ranks() const {
  RankPlans ranks = same_on_all_ranks(layout_, steps_.front()->plan, steps_.front()->memory);
  for (std::size_t i = 1; i < steps_.size(); ++i) ranks.plans.emplace_back(steps_[i]->plan, steps_[i]->memory);
  ranks.plan_of = plan_of_;
  return ranks;
}

}  // namespace weft
