// Where the pass puts gathers, releases and reductions. That the checker names what is wrong with them:
// tests/plan/check/damage_shards.cc.
#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/plan/plans.h"
#include "weft/plan/check/check_ranks.h"
#include "weft/plan/divided_memory.h"
#include "weft/plan/simulate/traffic.h"
#include "weft/plan/text.h"

namespace weft {
namespace {

using enum ShardingStrategy;

struct ShardCase {
  std::string pattern = "[*-][*-]";
  ShardingStrategy strategy = optim_grads_params;
  PlanOptions plan;
  int ranks = 4, expert_ranks = 1, instances = 1;
  bool over_instances = false;
  double clip = 1;
};

StepPlan step_of(const ShardCase& c) {
  StepOptions options;
  options.config = small_config(c.pattern);
  options.config.hidden = 64;
  options.config.attention = {.heads = 2, .kv_heads = 1, .head_dim = 32};
  options.config.mlp.ffn = 64;
  options.module.batch = 2;
  options.module.length = 3;
  options.module.layout = Layout::of({.dp = c.ranks, .ep = c.expert_ranks, .instances = c.instances});
  options.module.sharding = c.strategy;
  options.module.shard_over_instances = c.over_instances;
  options.optimizer.clip = c.clip;
  options.plan = c.plan;
  return plan_step(options);
}

int count(const Plan& plan, CollectiveKind kind) {
  return static_cast<int>(std::count_if(plan.collectives.begin(), plan.collectives.end(),
                                        [&](const NodeCollective& c) { return c.kind == kind; }));
}

TEST(Shard, every_strategy_gives_plans_that_the_checker_accepts) {
  for (const ShardingStrategy strategy : {no_shard, optim, optim_grads, optim_grads_params})
    for (const bool weave : {false, true})
      for (const bool late : {false, true})
        for (const bool by_piece : {false, true}) {
          ShardCase c;
          c.pattern = "[*E][*E]-/[*E]";
          c.strategy = strategy;
          c.expert_ranks = 2;
          c.plan.micro_batches = 3;
          c.plan.weave = weave;
          c.plan.overlap_updates = late;
          c.plan.gather_by_piece = by_piece;
          c.plan.two_buffers = late;
          const StepPlan step = step_of(c);
          const std::vector<PlanFault> faults = check_ranks(step.ranks());
          for (const PlanFault& fault : faults) ADD_FAILURE() << name_of(strategy) << ": " << fault.message;
          c.plan.kind = PlanKind::evaluate;
          const StepPlan evaluation = step_of(c);
          for (const PlanFault& fault : check_ranks(evaluation.ranks()))
            ADD_FAILURE() << name_of(strategy) << ", evaluation: " << fault.message;
        }
}

// What an instance gathers from others, and sums with others, it does once per step, whatever it repeats for each micro-batch.
TEST(Shard, instances_meet_once_per_step) {
  for (const ShardingStrategy strategy : {optim, optim_grads, optim_grads_params})
    for (const bool over_instances : {false, true}) {
      if (over_instances && strategy != optim_grads_params) continue;
      ShardCase c;
      c.strategy = strategy;
      c.instances = 2;
      c.over_instances = over_instances;
      c.plan.micro_batches = 3;
      const StepPlan step = step_of(c);
      for (const PlanFault& fault : check_ranks(step.ranks()))
        ADD_FAILURE() << name_of(strategy) << ": " << fault.message;
      const GroupId between = step.module.layout.instances();
      std::map<CollectiveKind, std::map<BufferId, int>> meetings;
      for (const Node& node : step.plan.nodes)
        for (const NodeCollective& n : step.plan.collectives_of(node))
          if (n.group == between) ++meetings[n.kind][n.kind == CollectiveKind::all_gather ? n.send : n.receive];
      const std::size_t tensors = step.module.parameters.size();
      EXPECT_EQ(meetings[CollectiveKind::all_reduce].size(), over_instances ? 0 : tensors) << name_of(strategy);
      EXPECT_EQ(meetings[CollectiveKind::reduce_scatter].size(), over_instances ? tensors : 0) << name_of(strategy);
      EXPECT_EQ(meetings[CollectiveKind::all_gather].size(), over_instances ? tensors : 0) << name_of(strategy);
      for (const auto& [kind, buffers] : meetings)
        for (const auto& [buffer, times] : buffers) EXPECT_EQ(times, 1) << step.plan.name_of(buffer);
      c.plan.kind = PlanKind::evaluate;
      for (const PlanFault& fault : check_ranks(step_of(c).ranks()))
        ADD_FAILURE() << name_of(strategy) << ", evaluation: " << fault.message;
    }
}

// Nothing is divided, so nothing is added to the step.
TEST(Shard, over_a_group_of_one_leaves_the_plan_as_it_is) {
  ShardCase c;
  c.ranks = 1;
  c.plan.weave = true;
  c.strategy = no_shard;
  const StepPlan whole = step_of(c);
  for (const ShardingStrategy strategy : {optim, optim_grads, optim_grads_params}) {
    c.strategy = strategy;
    const StepPlan step = step_of(c);
    EXPECT_EQ(to_text(step.plan, step.memory), to_text(whole.plan, whole.memory)) << name_of(strategy);
  }
}

TEST(Shard, strategies_differ_in_what_they_repeat_for_every_micro_batch) {
  ShardCase c;
  c.plan.micro_batches = 3;
  std::map<ShardingStrategy, StepPlan> steps;
  for (const ShardingStrategy strategy : {no_shard, optim, optim_grads, optim_grads_params}) {
    c.strategy = strategy;
    steps.emplace(strategy, step_of(c));
  }
  const int tensors = static_cast<int>(steps.at(optim).module.parameters.size());
  EXPECT_EQ(count(steps.at(no_shard).plan, CollectiveKind::all_gather), 0);
  EXPECT_EQ(count(steps.at(optim).plan, CollectiveKind::all_gather), tensors);
  EXPECT_EQ(count(steps.at(optim).plan, CollectiveKind::reduce_scatter), tensors);
  EXPECT_EQ(count(steps.at(optim_grads).plan, CollectiveKind::all_gather), tensors);
  EXPECT_EQ(count(steps.at(optim_grads).plan, CollectiveKind::reduce_scatter), 3 * tensors);
  EXPECT_EQ(count(steps.at(optim_grads_params).plan, CollectiveKind::reduce_scatter), 3 * tensors);
  // Embedding, head and final norm are needed once per micro-batch, layers twice.
  EXPECT_GT(count(steps.at(optim_grads_params).plan, CollectiveKind::all_gather), 3 * tensors);
}

TEST(Shard, parts_and_states_are_a_share_of_the_whole) {
  ShardCase c;
  c.strategy = no_shard;
  const MemoryPlan whole = step_of(c).memory;
  c.strategy = optim_grads_params;
  const MemoryPlan parts = step_of(c).memory;
  EXPECT_LE(parts.weights, whole.weights / 4 + whole.weights / 20);
  EXPECT_LE(parts.states, whole.states / 4 + whole.states / 20);
  EXPECT_LE(parts.gradients, whole.gradients / 4 + whole.gradients / 20);
}

TEST(Shard, of_eight_equal_units_two_are_gathered_at_a_time_or_three_when_woven) {
  for (const bool weave : {false, true})
    for (const bool by_piece : {false, true}) {
      ShardCase c;
      c.pattern = "[*-][*-][*-][*-][*-][*-][*-][*-]";
      c.plan.micro_batches = 3;
      c.plan.weave = weave;
      c.plan.gather_by_piece = by_piece;
      const StepPlan step = step_of(c);
      std::int64_t unit = 0;
      const std::vector<int> units = units_of_tensors(step.module);
      for (std::size_t i = 0; i < units.size(); ++i)
        if (units[i] == 2) unit += step.module.value(step.module.shards[0][i].whole).room * 4;
      const DividedMemory divided = divided_memory(step.plan, step.memory);
      EXPECT_LE(divided.gathered, (weave ? 3 : 2) * unit) << "weave " << weave << " by piece " << by_piece;
      EXPECT_GT(divided.gathered, unit / 2);
    }
}

// Whatever the order of a step and however its gathers are grouped, what is gathered and reduced is the same: it follows
// from what nodes use. Only strategies differ.
TEST(Shard, every_order_and_grouping_sends_the_bytes_of_the_plain_plan) {
  for (const char* pattern : {"[*E][*-]E", "M[*E]G-/[*E]"})
    for (const ShardingStrategy strategy : {optim, optim_grads, optim_grads_params}) {
      ShardCase plain;
      plain.pattern = pattern;
      plain.strategy = strategy;
      plain.expert_ranks = 2;
      plain.plan.micro_batches = 3;
      const auto traffic = [](const ShardCase& c) {
        const StepPlan step = step_of(c);
        const auto sent = traffic_of(step.plan, step.module.layout);
        return std::pair{sent[static_cast<std::size_t>(Lane::gather)], sent[static_cast<std::size_t>(Lane::reduce)]};
      };
      const auto expected = traffic(plain);
      EXPECT_GT(expected.first, 0);
      for (const bool by_piece : {false, true})
        for (const std::int64_t ahead : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{1} << 40})
          for (const bool two_buffers : {false, true})
            for (int order = 0; order < 5; ++order) {
              ShardCase c = plain;
              c.plan.gather_by_piece = by_piece;
              c.plan.gather_ahead = ahead;
              c.plan.two_buffers = two_buffers;
              c.plan.weave = order == 1 || order == 2 || order == 4;
              c.plan.delay_weight_gradients = order == 2 || order == 4;
              c.plan.overlap_dispatch_backward = order == 3;
              c.plan.overlap_updates = order == 4;
              EXPECT_EQ(traffic(c), expected) << pattern << ", " << name_of(strategy) << ", by piece " << by_piece
                                              << ", ahead " << ahead << ", two " << two_buffers << ", order " << order;
            }
    }
}

TEST(Shard, gathers_come_before_their_use_as_far_as_the_bound_allows) {
  const auto mean_lead = [](std::int64_t ahead) {
    ShardCase c;
    c.pattern = "[*-][*-][*-][*-]";
    c.plan.gather_ahead = ahead;
    const Plan plan = step_of(c).plan;
    double nodes = 0, gathers = 0;
    for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
      if (plan.nodes[i].lane != Lane::gather || plan.nodes[i].kind != NodeKind::communicate) continue;
      const BufferId whole = plan.collectives_of(plan.nodes[i]).front().receive;
      std::size_t use = i + 1;
      const auto uses = [&](const Node& node) {
        const auto list = plan.uses_of(node);
        return std::any_of(list.begin(), list.end(), [&](const BufferUse& u) { return u.buffer == whole; });
      };
      while (!uses(plan.nodes[use])) ++use;
      nodes += static_cast<double>(use - i);
      ++gathers;
    }
    return nodes / gathers;
  };
  const double none = mean_lead(0), one = mean_lead(20000), many = mean_lead(80000);
  EXPECT_LT(none, one);
  EXPECT_LT(one, many);
}

}  // namespace
}  // namespace weft
