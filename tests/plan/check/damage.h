// Ways to break a good plan, each in one known place that the checker must name.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/plan/random_plans.h"

namespace weft {

struct GoodPlan {
  RandomCase origin;
  Plan plan;
  MemoryPlan memory;
  std::shared_ptr<const LayoutPlans> all = {};  // with stages: of all ranks
  int stage = 0;                                // that has `plan`
};

struct Damage {
  Plan plan;
  MemoryPlan memory;          // of the damaged plan
  bool keeps_memory = false;  // `memory` was damaged, so it is not planned again
  bool on_one_rank = false;   // all other ranks run the good plan
  // One fault must contain all of `names` (nodes and buffers), and one of `messages`.
  std::vector<std::string> names;
  std::vector<std::string> messages;
};

struct DamageKind {
  const char* name;
  // Breaks `damage.plan` or `damage.memory`, both copies of the good ones. False, without a change, if this plan cannot
  // be broken this way or the damage would do no harm.
  bool (*apply)(const GoodPlan& good, Dice& dice, Damage& damage);
  int least;  // number of plans of mutation_test.cc that must be breakable this way
};
std::vector<DamageKind> damage_kinds();             // of any plan
std::vector<DamageKind> damage_kinds_of_divided();  // of plans with divided parameters
std::vector<DamageKind> damage_kinds_of_stages();   // of plans of one stage of a pipeline

// Pairs of nodes that may touch the same bytes at the same time for different buffers, by brute force: all pairs of
// buffers, all paths. The oracle of check_memory, for small plans.
std::vector<std::pair<NodeId, NodeId>> races(const Plan& plan, const MemoryPlan& memory);

}  // namespace weft
