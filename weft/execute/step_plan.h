// From a model and a layout to a step that can be checked, priced, drawn or run: the one place where module, updates,
// plan and memory are put together.
#pragma once

#include <memory>
#include <vector>

#include "weft/model/build_module.h"
#include "weft/optim/optimizer.h"
#include "weft/plan/build.h"
#include "weft/plan/memory.h"
#include "weft/plan/rank_plans.h"
#include "weft/plan/simulate/estimate.h"

namespace weft {

struct StepOptions {
  ModelConfig config;
  ModuleOptions module;  // shape, precision, layout
  OptimizerSpec optimizer;
  PlanOptions plan;
};

struct StepPlan {
  Module module;
  Plan plan;
  MemoryPlan memory;

  // The plans of all ranks of a layout without stages: all run this one. Refers to this object.
  RankPlans ranks() const { return same_on_all_ranks(module.layout, plan, memory); }
};

// The steps of all ranks of a layout, one for each class of ranks.
class LayoutPlans {
 public:
  LayoutPlans(const StepOptions& options, const Pricer& pricer = {});

  const std::vector<std::unique_ptr<StepPlan>>& steps() const { return steps_; }
  const StepPlan& step_of(RankId rank) const { return *steps_[static_cast<std::size_t>(plan_of_[rank.index()])]; }
  // How many ranks run that step.
  std::int64_t ranks_in(std::size_t step) const;
  RankPlans ranks() const;          // refers to this object
  std::vector<int> stages() const;  // by rank; empty: there is one

 private:
  Layout layout_;
  std::vector<std::unique_ptr<StepPlan>> steps_;  // of the classes, by their first rank
  std::vector<std::int32_t> plan_of_;             // by rank
};

// Plans that evaluate get no updates; plans that only compute gradients get no optimizer state. Where logits are kept,
// no expert drops a token, so that the result of a token does not depend on later tokens.
// pricer: fills the costs of the plan's nodes; without one they stay zero.
StepPlan plan_step(const StepOptions& options, const Pricer& pricer = {});

}  // namespace weft
