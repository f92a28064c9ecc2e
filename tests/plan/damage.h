// Ways to break a good plan, each in one place that is known, so that the checker can be asked to name it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/plan/random_plans.h"

namespace weft {

struct GoodPlan {
  RandomCase origin;
  Plan plan;
  MemoryPlan memory;
};

struct Damage {
  Plan plan;
  MemoryPlan memory;          // of the damaged plan
  bool keeps_memory = false;  // `memory` is what was damaged: it is not planned anew
  bool on_one_rank = false;   // all other ranks run the good plan
  // One fault must name all of these nodes (and buffers), and say one of these things.
  std::vector<std::string> names;
  std::vector<std::string> says;
};

struct DamageKind {
  const char* name;
  // Breaks `damage.plan` or `damage.memory`, both copies of the good ones. False: this plan has nothing to break this
  // way, or the damage would do no harm; nothing was changed then.
  bool (*apply)(const GoodPlan& good, Dice& dice, Damage& damage);
  int least;  // of the plans of mutation_test.cc: how many must be breakable this way
};
std::vector<DamageKind> damage_kinds();

// Pairs of nodes that may touch the same bytes at the same time for different buffers, by brute force: all pairs of
// buffers, all paths. The oracle of check_memory, for small plans.
std::vector<std::pair<NodeId, NodeId>> races(const Plan& plan, const MemoryPlan& memory);

}  // namespace weft
