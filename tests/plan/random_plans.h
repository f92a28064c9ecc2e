// Random valid plans for the checker's tests: a pure function of a seed.
#pragma once

#include <string>

#include "tests/base/dice.h"
#include "weft/execute/step_plan.h"
#include "weft/plan/check/check_ranks.h"

namespace weft {

struct RandomCase {
  std::string pattern;
  int expert_ranks = 1, expert_shards = 1, expert_tensor_ranks = 1;  // ranks of a stage = their product
  int tensor_ranks = 1;                                              // of them
  bool sequence = false;                                             // tensor ranks divide tokens, too
  int stages = 1;
  PlanOptions options;
  DType dtype = DType::f32;
  std::int64_t experts = 4, k = 2;
  bool shared = false, tied = false, bias = false, clips = true;
  int balance = 0;  // which way of balancing experts
  ShardingStrategy sharding = ShardingStrategy::no_shard;
  int instances = 1;  // of the optimizer; a divisor of expert_shards
  bool over_instances = false;

  int ranks() const { return expert_ranks * expert_shards * expert_tensor_ranks * stages; }
  Layout layout() const {
    return Layout::of({.tp = tensor_ranks,
                       .dp = ranks() / stages / tensor_ranks,
                       .pp = stages,
                       .etp = expert_tensor_ranks,
                       .ep = expert_ranks,
                       .instances = instances});
  }
  std::string text() const;  // for messages
};
// Of kind `train`, unless any_kind.
RandomCase random_case(std::uint64_t seed, bool any_kind = false);

// With 2 to 4 stages of 1 to 3 segments, any of which may be empty.
RandomCase random_staged_case(std::uint64_t seed, bool any_kind = false);

// Of kind `train`, with parameters that ranks divide.
RandomCase random_divided_case(std::uint64_t seed);

// Of kind `train`, on ranks that divide layers; parameters may be divided further.
RandomCase random_tensor_case(std::uint64_t seed);

StepOptions options_of(const RandomCase& c);
StepPlan step_of(const RandomCase& c);

}  // namespace weft
