// 10,000 valid plans are accepted.
#include "tests/plan/random_plans.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "weft/base/error.h"
#include "weft/plan/digest.h"

namespace weft {
namespace {

constexpr std::uint64_t all_plans = 10000;

TEST(RandomPlans, are_accepted_without_a_false_alarm) {
  std::uint64_t woven = 0, exchanging = 0, reusing = 0, plans = 0;
  std::set<std::string> patterns;
  for (std::uint64_t seed = 0; seed < all_plans; ++seed) {
    const RandomCase c = random_case(seed, true);
    try {
      const StepPlan step = step_of(c);  // checks after every pass
      const Plan& plan = step.plan;
      const std::vector<PlanFault> faults = check_ranks(step.ranks());
      ASSERT_TRUE(faults.empty()) << "seed " << seed << ", " << c.text() << ":\n" << faults.front().message;
      ++plans;
      woven += c.options.weave;
      exchanging += std::any_of(plan.nodes.begin(), plan.nodes.end(),
                                [](const Node& node) { return node.lane == Lane::exchange; });
      reusing += !step.memory.reuses.empty();
      patterns.insert(c.pattern);
    } catch (const std::exception& e) {
      FAIL() << "seed " << seed << ", " << c.text() << ":\n" << e.what();
    }
  }
  EXPECT_EQ(plans, all_plans);
  EXPECT_GT(woven, plans / 2);
  EXPECT_GT(exchanging, plans / 3);
  EXPECT_GT(reusing, plans / 50) << "too few plans take over memory between lanes";
  EXPECT_GT(patterns.size(), plans / 5);
}

TEST(RandomPlans, of_pipelines_are_accepted_without_a_false_alarm) {
  std::set<int> micro_batches_of_virtual_stages;
  int woven = 0, divided = 0, recomputed = 0;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    const RandomCase c = random_staged_case(seed, true);
    try {
      const LayoutPlans plans(options_of(c));
      const std::vector<PlanFault> faults = check_ranks(plans.ranks());
      ASSERT_TRUE(faults.empty()) << "seed " << seed << ", " << c.text() << ":\n" << faults.front().message;
      woven += c.options.weave;
      divided += c.sharding != ShardingStrategy::no_shard;
      recomputed += c.options.recomputation.any();
      if (plans.steps().front()->module.chunks.size() > 1)
        micro_batches_of_virtual_stages.insert(c.options.micro_batches);
    } catch (const std::exception& e) {
      FAIL() << "seed " << seed << ", " << c.text() << ":\n" << e.what();
    }
  }
  EXPECT_GT(woven, 500);
  EXPECT_GT(divided, 300);
  EXPECT_GT(recomputed, 500);
  EXPECT_EQ(micro_batches_of_virtual_stages.size(), 9u);
}

// Ranks that hold different experts, or other parts of parameters, run the same plan.
TEST(RandomPlans, are_the_same_on_every_rank) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const RandomCase c = random_case(seed, true);
    StepOptions options = options_of(c);
    const std::uint64_t first = digest_of(plan_step(options).plan);
    for (int rank = 1; rank < c.ranks(); ++rank) {
      options.module.layout = c.layout().seen_from(RankId(rank));
      ASSERT_EQ(digest_of(plan_step(options).plan), first) << c.text();
    }
  }
}

}  // namespace
}  // namespace weft
