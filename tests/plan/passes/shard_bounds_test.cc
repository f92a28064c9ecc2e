// How far ahead whole parameters are gathered, and when memory of their gradients is taken.
#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/plan/plans.h"
#include "weft/plan/passes/shard.h"

namespace weft {
namespace {

constexpr ShardingStrategy strategy = ShardingStrategy::optim_grads_params;

// Whole parameters of the first division that a gather brings.
struct Gather {
  std::size_t node = 0, first_use = 0, last_use = 0;
  std::int64_t elements = 0;
  bool backward = false;
  int unit = 0;  // that uses them
  std::int32_t micro_batch = 0;
};

std::vector<Gather> gathers_of(const Plan& plan) {
  std::vector<std::size_t> first(plan.buffers.size(), plan.nodes.size()), last(plan.buffers.size());
  for (std::size_t i = 0; i < plan.nodes.size(); ++i)
    for (const BufferUse& use : plan.uses_of(plan.nodes[i])) {
      if (use.access != Access::read) continue;
      first[use.buffer.index()] = std::min(first[use.buffer.index()], i);
      last[use.buffer.index()] = i;
    }
  std::vector<Gather> gathers;
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const Node& node = plan.nodes[i];
    Gather g{i, plan.nodes.size()};
    for (const NodeCollective& c : plan.collectives_of(node)) {
      if (c.kind != CollectiveKind::all_gather || plan.value_of(c.receive).part > 0) continue;
      g.elements += plan.value_of(c.receive).shape.elements();
      g.first_use = std::min(g.first_use, first[c.receive.index()]);
      g.last_use = std::max(g.last_use, last[c.receive.index()]);
    }
    if (g.elements == 0) continue;
    g.backward = node.phase != Phase::forward;
    g.unit = plan.place_of(plan.nodes[g.first_use]).unit;
    g.micro_batch = node.micro_batch;
    gathers.push_back(g);
  }
  return gathers;
}

std::vector<PlanOptions> orders() {
  PlanOptions plain, woven, delayed, dispatch, again;
  plain.micro_batches = 3;
  woven = dispatch = again = plain;
  woven.weave = dispatch.overlap_dispatch_backward = true;
  delayed = woven;
  delayed.delay_weight_gradients = true;
  again = delayed;
  again.recomputation = {Recomputation::Kind::uniform, 1};
  return {plain, woven, delayed, dispatch, again};
}

StepPlan step_of(const char* pattern, const PlanOptions& order) {
  return small_step(pattern, order, Layout::of({.dp = 4, .ep = 2}), {}, strategy);
}

// Unless it is needed at once, nothing is gathered beyond the bound; a piece that is larger than it only alone.
TEST(ShardBounds, elements_gathered_ahead_are_at_most_those_asked_for) {
  for (const char* pattern : {"[*E][*-][GE][M*E]", "M*EM*E-", "[*E][*E]/[*E]"})
    for (const PlanOptions& order : orders())
      for (const bool by_piece : {false, true})
        for (const std::int64_t ahead : {-1, 0, 100, 1000, 5000}) {
          PlanOptions options = order;
          options.gather_by_piece = by_piece;
          options.gather_ahead = ahead;
          const StepPlan step = step_of(pattern, options);
          const std::int64_t most = ahead < 0 ? elements_of_mean_unit(step.module) : ahead;
          const std::vector<Gather> gathers = gathers_of(step.plan);
          for (const Gather& last : gathers) {
            std::size_t next = last.node;  // that computes
            while (step.plan.nodes[next].lane == Lane::gather || step.plan.nodes[next].lane == Lane::reduce) ++next;
            std::int64_t waiting = 0;  // elements, with those of `last`, that `next` does not use
            int count = 0;
            for (const Gather& g : gathers)
              if (g.node <= last.node && g.first_use > next) {
                waiting += g.elements;
                ++count;
              }
            EXPECT_TRUE(waiting <= most || count == 1) << pattern << " by piece " << by_piece << " ahead " << ahead
                                                       << ", node " << last.node << ": " << waiting;
          }
        }
}

TEST(ShardBounds, two_buffers_hold_two_units_of_each_direction) {
  for (const char* pattern : {"[*E][*-][GE][M*E]", "M*EM*E-", "[*E][*E]/[*E]"})
    for (const PlanOptions& order : orders())
      for (const bool by_piece : {false, true}) {
        PlanOptions options = order;
        options.gather_by_piece = by_piece;
        options.two_buffers = true;
        const StepPlan step = step_of(pattern, options);
        const std::vector<Gather> gathers = gathers_of(step.plan);
        for (const Gather& last : gathers) {
          std::set<std::pair<int, std::int32_t>> held;  // unit and micro-batch, of its direction
          for (const Gather& g : gathers)
            if (g.node <= last.node && g.last_use >= last.node && g.backward == last.backward)
              held.emplace(g.unit, g.micro_batch);
          EXPECT_LE(held.size(), 2u) << pattern << " by piece " << by_piece << ", node " << last.node;
        }
      }
}

// Not in the forward pass, except where the head computes both.
TEST(ShardBounds, gradients_take_memory_with_their_first_contribution) {
  for (const char* pattern : {"[*E][*-][GE][M*E]", "[*E][*E]/[*E]"})
    for (const PlanOptions& order : orders()) {
      const StepPlan step = step_of(pattern, order);
      const Plan& plan = step.plan;
      int counted = 0;
      for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
        const BufferId buffer(static_cast<std::int64_t>(b));
        if (plan.value_of(buffer).storage != StorageClass::partial) continue;
        const Lifetime life = step.memory.lifetimes[b];
        ASSERT_GE(life.first, 0);
        const Node& first = plan.nodes[static_cast<std::size_t>(life.first)];
        const auto uses = plan.uses_of(first);
        EXPECT_TRUE(std::any_of(uses.begin(), uses.end(), [&](const BufferUse& use) {
          return use.buffer == buffer && use.access == Access::add && use.contribution == 0;
        })) << plan.name_of(buffer);
        EXPECT_TRUE(first.phase == Phase::backward || first.phase == Phase::weight_gradient ||
                    plan.place_of(first).section == Section::head)
            << plan.name_of(buffer) << " in " << plan.place_of(first).name;
        EXPECT_EQ(plan.nodes[static_cast<std::size_t>(life.last)].lane, Lane::reduce) << plan.name_of(buffer);
        ++counted;
      }
      EXPECT_GT(counted, 30);
    }
}

}  // namespace
}  // namespace weft
