// Where the pass puts gathers, releases and reductions; and that the checker names what is wrong with them.
#include <algorithm>
#include <functional>
#include <map>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/plan/plans.h"
#include "weft/plan/check/check_ranks.h"
#include "weft/plan/divided_memory.h"
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
  options.adam.clip = c.clip;
  options.plan = c.plan;
  return plan_step(options);
}

ShardCase woven(ShardCase c = {}) {
  c.plan.micro_batches = 3;
  c.plan.weave = true;
  return c;
}

std::int64_t bytes_gathered(const Plan& plan) {
  std::int64_t bytes = 0;
  for (const NodeCollective& c : plan.collectives)
    if (c.kind == CollectiveKind::all_gather) bytes += c.bytes;
  return bytes;
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

TEST(Shard, woven_plans_gather_the_bytes_of_plain_ones) {
  ShardCase plain = woven();
  plain.plan.weave = false;
  EXPECT_EQ(bytes_gathered(step_of(woven()).plan), bytes_gathered(step_of(plain).plan));
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

// A plan of a sharded, woven step, and places in it for damages to change.
struct Sharded {
  StepPlan step = step_of(woven());

  Plan& plan() { return step.plan; }
  std::size_t find(const std::function<bool(const Node&)>& want, int which = 0) {
    for (std::size_t i = 0; i < plan().nodes.size(); ++i)
      if (want(plan().nodes[i]) && which-- == 0) return i;
    ADD_FAILURE() << "the plan has no such node";
    return 0;
  }
  std::size_t gather(int which = 3) {
    return find([](const Node& n) { return n.lane == Lane::gather && n.kind == NodeKind::communicate; }, which);
  }
  std::size_t release(int which = 3) {
    return find([](const Node& n) { return n.kind == NodeKind::release; }, which);
  }
  std::size_t reduction(int which = 1) {
    return find([this](const Node& n) { return collective(n, CollectiveKind::reduce_scatter); }, which);
  }
  std::size_t addition(int which = 1) {
    return find([](const Node& n) { return n.kind == NodeKind::accumulate; }, which);
  }
  bool collective(const Node& n, CollectiveKind kind) {
    const auto list = plan().collectives_of(n);
    return !list.empty() && list.front().kind == kind;
  }
  NodeCollective& first_collective(std::size_t node) {
    return plan().collectives[static_cast<std::size_t>(plan().nodes[node].first_collective)];
  }
  BufferUse& use(std::size_t node, int which) {
    return plan().uses[static_cast<std::size_t>(plan().nodes[node].first_use + which)];
  }
  void erase(std::size_t at) { plan().nodes.erase(plan().nodes.begin() + static_cast<std::ptrdiff_t>(at)); }
  void repeat(std::size_t at) {
    plan().nodes.insert(plan().nodes.begin() + static_cast<std::ptrdiff_t>(at), plan().nodes[at]);
  }
  void move(std::size_t from, std::size_t to) {
    const Node node = plan().nodes[from];
    erase(from);
    plan().nodes.insert(plan().nodes.begin() + static_cast<std::ptrdiff_t>(to > from ? to - 1 : to), node);
  }
  // The last node that adds to what a reduction sends.
  std::size_t last_contribution(std::size_t reduction) {
    const BufferId sent = first_collective(reduction).send;
    for (std::size_t i = reduction; i-- > 0;)
      for (const BufferUse& u : plan().uses_of(plan().nodes[i]))
        if (u.buffer == sent && u.access == Access::add) return i;
    return 0;
  }
};

struct ShardDamage {
  const char* name;
  const char* message;
  std::function<void(Sharded&)> damage;
};
class DamagedShards : public testing::TestWithParam<ShardDamage> {};

TEST_P(DamagedShards, are_named_by_the_checker) {
  Sharded s;
  GetParam().damage(s);
  s.step.memory = plan_memory(s.step.plan);
  std::string all;
  for (const PlanFault& fault : check_ranks(s.step.ranks())) all += fault.message + "\n";
  EXPECT_NE(all.find(GetParam().message), std::string::npos) << all;
}

INSTANTIATE_TEST_SUITE_P(
    Each, DamagedShards,
    testing::Values(
        ShardDamage{"used_while_not_gathered", "is used while it is not gathered",
                    [](Sharded& s) { s.erase(s.gather()); }},
        ShardDamage{"gathered_twice", "is gathered twice", [](Sharded& s) { s.repeat(s.gather()); }},
        ShardDamage{"never_released", "is never released", [](Sharded& s) { s.erase(s.release()); }},
        ShardDamage{"released_before_its_last_use", "is used after it is released",
                    [](Sharded& s) { s.move(s.release(), s.release() - 1); }},
        ShardDamage{"gathered_past_its_last_use", "stays gathered past its last use",
                    [](Sharded& s) { s.move(s.release(), s.release() + 6); }},
        ShardDamage{"gathered_from_the_part_of_another", "is not a part of",
                    [](Sharded& s) {
                      const std::size_t at = s.gather(), other = s.gather(5);
                      s.first_collective(at).send = s.first_collective(other).send;
                      s.use(at, 0).buffer = s.first_collective(other).send;
                    }},
        ShardDamage{"parts_that_do_not_cover_a_parameter", "do not hold all of",
                    [](Sharded& s) {
                      const auto exact = [&](const NodeCollective& c) {
                        if (c.kind != CollectiveKind::all_gather) return false;
                        const ValueInfo& whole = s.plan().value_of(c.receive);
                        return whole.bytes == whole.shape.elements() * 4;
                      };
                      const NodeCollective c =
                          *std::find_if(s.plan().collectives.begin(), s.plan().collectives.end(), exact);
                      ValueInfo& part = s.plan().values[s.plan().buffers[c.send.index()].value.index()];
                      ValueInfo& whole = s.plan().values[s.plan().buffers[c.receive.index()].value.index()];
                      part.bytes -= 128;
                      whole.bytes -= 4 * 128;
                    }},
        ShardDamage{"gathered_over_other_ranks", "one for each rank of",
                    [](Sharded& s) { s.first_collective(s.gather()).group = s.step.module.layout.expert_ranks(); }},
        ShardDamage{"gradient_never_reduced", "is never reduced over ranks",
                    [](Sharded& s) { s.erase(s.reduction()); }},
        ShardDamage{"gradient_reduced_twice", "is reduced twice", [](Sharded& s) { s.repeat(s.reduction()); }},
        ShardDamage{"gradient_reduced_before_its_last_contribution", "is reduced after 0 of its 1 contributions",
                    [](Sharded& s) {
                      const std::size_t at = s.reduction();
                      s.move(at, s.last_contribution(at));
                    }},
        ShardDamage{"gradient_reduced_over_other_ranks", "is summed over",
                    [](Sharded& s) { s.first_collective(s.reduction()).group = s.step.module.layout.expert_ranks(); }},
        ShardDamage{"contribution_written_over", "gets contributions and is overwritten",
                    [](Sharded& s) {
                      const std::size_t at = s.last_contribution(s.reduction());
                      const BufferId sent = s.first_collective(s.reduction()).send;
                      for (int u = 0; u < s.plan().nodes[at].uses; ++u)
                        if (s.use(at, u).buffer == sent) s.use(at, u).access = Access::write;
                    }},
        ShardDamage{"sum_never_added", "is written and never read", [](Sharded& s) { s.erase(s.addition()); }},
        ShardDamage{"sum_added_twice", "is counted twice", [](Sharded& s) { s.repeat(s.addition()); }},
        ShardDamage{"sums_added_out_of_order", "comes before contribution",
                    [](Sharded& s) {
                      const std::size_t first = s.addition(0);
                      const BufferId kept = s.use(first, 1).buffer;
                      std::size_t second = first + 1;
                      while (s.plan().nodes[second].kind != NodeKind::accumulate || s.use(second, 1).buffer != kept)
                        ++second;
                      s.move(first, second + 1);
                    }},
        ShardDamage{"sum_added_to_the_part_of_another", "is not a sum that belongs to",
                    [](Sharded& s) { s.use(s.addition(), 1).buffer = s.use(s.addition(4), 1).buffer; }},
        ShardDamage{"update_reads_a_ranks_own_sum", "is one rank's own sum",
                    [](Sharded& s) {
                      const BufferId own = s.first_collective(s.reduction()).send;
                      const ValueId kept = s.step.module.gradient_values[s.plan().value_of(own).tensor.index()];
                      for (const Node& node : s.plan().nodes)
                        for (int u = 0; node.phase == Phase::update && u < node.uses; ++u)
                          if (BufferUse& use = s.plan().uses[static_cast<std::size_t>(node.first_use + u)];
                              s.plan().buffers[use.buffer.index()].value == kept)
                            use.buffer = own;
                    }}),
    [](const auto& damage) { return std::string(damage.param.name); });

}  // namespace
}  // namespace weft
