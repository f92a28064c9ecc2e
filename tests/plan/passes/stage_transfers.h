// A pass for tests and benches: turns a plan into a pipeline. Every stage runs the whole plan; in every micro-batch it
// receives an activation from the previous stage, which its first forward node reads, and sends the output of its last
// layer to the next stage.
#pragma once

#include <deque>

#include "weft/plan/rank_plans.h"

namespace weft {

// The plan of one stage. group: of all stages.
Plan insert_stage_transfers(const Plan& plan, GroupId group, int stage, int stages);

struct StagePlans {
  std::deque<Plan> plans;  // by stage
  std::deque<MemoryPlan> memories;
  RankPlans ranks;  // refers to these

  StagePlans() = default;
  StagePlans(StagePlans&&) = default;
};
// For all ranks of the layout: one plan per stage of its axis pp. `plan`: of a rank of such a stage alone.
StagePlans make_stages(const Plan& plan, const Layout& layout);
// `stages` stages of `ranks` ranks each; the first stage has ranks 0, 1, ...
Layout staged_layout(int stages, int ranks, int expert_ranks);

}  // namespace weft
