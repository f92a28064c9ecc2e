#include "weft/train/prefetch_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/execute/ranks.h"
#include "weft/plan/divided_memory.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

// Compute nodes take as long as transfers do.
PieceCost cost_of(const Module&, const Plan&, const Node&) { return {1e7, 1e4}; }

StepOptions step_with(ShardingStrategy strategy) {
  RankCase c = small_case("[*-][*-][*-][*-]");
  c.sharding = strategy;
  c.micro_batches = 2;
  SessionOptions options = options_of(c, nullptr);
  options.layout = Layout::of_data_and_experts(4, 1);
  return training_step(options);
}

std::vector<PrefetchCost> costs_of(const StepOptions& options) {
  return prefetch_costs(plan_step(options).module, options.plan, cost_of, Cluster());
}

TEST(PrefetchCosts, are_those_of_the_plan_that_was_asked_for) {
  for (const bool by_piece : {true, false})
    for (const bool two_buffers : {false, true})
      for (const std::int64_t ahead : {-1, 700}) {
        StepOptions options = step_with(ShardingStrategy::optim_grads_params);
        options.plan.gather_by_piece = by_piece;
        options.plan.two_buffers = two_buffers;
        options.plan.gather_ahead = ahead;
        const StepPlan step = plan_step(options, cost_of);
        const std::vector<PrefetchCost> costs = costs_of(options);
        EXPECT_EQ(costs.size(), ahead >= 0 && !two_buffers ? 11 : 10);
        int chosen = 0;
        for (const PrefetchCost& cost : costs) {
          if (!cost.chosen) continue;
          ++chosen;
          const DividedMemory divided = divided_memory(step.plan, step.memory);
          EXPECT_EQ(cost.by_piece, by_piece);
          EXPECT_EQ(cost.mean_units == 0, two_buffers);
          EXPECT_EQ(cost.gathered, divided.gathered);
          EXPECT_EQ(cost.units, divided.units);
          EXPECT_EQ(cost.memory, step.memory.total());
          EXPECT_DOUBLE_EQ(cost.seconds, estimate_step(step.ranks(), Cluster()).seconds);
        }
        EXPECT_EQ(chosen, 1);
      }
}

TEST(PrefetchCosts, tell_what_memory_buys) {
  const std::vector<PrefetchCost> costs = costs_of(step_with(ShardingStrategy::optim_grads_params));
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(costs[i].mean_units, 2 * costs[i - 1].mean_units);
    EXPECT_GE(costs[i].gathered, costs[i - 1].gathered);
  }
  EXPECT_GT(costs[3].gathered, costs[0].gathered);
  EXPECT_GT(costs[3].units, costs[0].units);
  for (const PrefetchCost& cost : costs) EXPECT_GT(cost.seconds, 0);
  const std::string text = to_text(costs);
  EXPECT_THAT(text, HasSubstr("\n  * 1 x the mean unit, "));
  EXPECT_THAT(text, HasSubstr("two units of each direction, by unit"));
  const Json json = to_json(costs);
  EXPECT_EQ(json.size(), costs.size());
  EXPECT_EQ(json[1].at("chosen"), true);
  EXPECT_EQ(json[1].at("elements_ahead"), costs[1].elements);
  EXPECT_EQ(json[4].at("two_buffers"), true);
  EXPECT_EQ(json[9].at("by_piece"), false);
  EXPECT_EQ(json[9].at("units_at_peak"), costs[9].units);
  EXPECT_EQ(json[9].at("step_seconds"), costs[9].seconds);
}

TEST(PrefetchCosts, are_none_where_weights_are_gathered_once) {
  for (const ShardingStrategy strategy :
       {ShardingStrategy::no_shard, ShardingStrategy::optim, ShardingStrategy::optim_grads})
    EXPECT_TRUE(costs_of(step_with(strategy)).empty()) << name_of(strategy);
  EXPECT_EQ(to_text(std::vector<PrefetchCost>{}), "");
}

// Of two units that are the same, what is there at a time; and what instances gather from each other.
TEST(DividedMemory, counts_parts_whole_weights_and_sums) {
  StepOptions options = step_with(ShardingStrategy::no_shard);
  const StepPlan whole = plan_step(options);
  EXPECT_EQ(divided_memory(whole.plan, whole.memory).weights, 0);
  options.module.sharding = ShardingStrategy::optim;
  const StepPlan once = plan_step(options);
  const DividedMemory all = divided_memory(once.plan, once.memory);
  EXPECT_EQ(all.weights, once.memory.weights);
  EXPECT_EQ(all.gradients, once.memory.gradients);
  EXPECT_EQ(all.states, once.memory.states);
  EXPECT_EQ(all.units, 6) << "embedding, four layers, head";
  EXPECT_GE(all.gathered, whole.memory.weights);
  EXPECT_GE(all.in_flight, whole.memory.weights) << "gradients are of the weights' type";
  EXPECT_EQ(all.of_instances, 0);
  options.module.sharding = ShardingStrategy::optim_grads_params;
  const StepPlan often = plan_step(options);
  const DividedMemory some = divided_memory(often.plan, often.memory);
  EXPECT_LT(some.units, all.units);
  EXPECT_LT(some.gathered, all.gathered);
  EXPECT_LT(some.in_flight, all.in_flight);
  options.module.layout = Layout::of({.dp = 4, .instances = 2});
  options.module.shard_over_instances = true;
  const StepPlan twice = plan_step(options);
  const DividedMemory outer = divided_memory(twice.plan, twice.memory);
  EXPECT_EQ(outer.weights, all.weights);
  EXPECT_EQ(outer.of_instances, 2 * outer.weights);
}

}  // namespace
}  // namespace weft
