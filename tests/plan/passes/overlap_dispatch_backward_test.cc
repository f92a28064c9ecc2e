// The backward dispatch is queued as soon as its rows are there, and what is left of the experts' backward pass hides it.
#include "weft/plan/passes/overlap_dispatch_backward.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "tests/plan/plans.h"
#include "weft/base/text.h"
#include "weft/plan/check/check_ranks.h"
#include "weft/plan/simulate/estimate.h"

namespace weft {
namespace {

struct DispatchCase {
  std::string pattern = "[*E]-";
  bool first = true, shared = false, delay = false, weave = false;
  std::int64_t latent = 0;
  ShardingStrategy sharding = ShardingStrategy::no_shard;
  PlanKind kind = PlanKind::train;
};

StepPlan step_of(const DispatchCase& c, const Pricer& pricer = {}) {
  StepOptions options;
  options.config = small_config(c.pattern);
  options.config.experts.shared_ffn = c.shared ? 4 : 0;
  options.config.experts.latent = c.latent;
  options.module.batch = 2;
  options.module.length = 3;
  options.module.layout = Layout::of({.dp = 4, .ep = 2});
  options.module.sharding = c.sharding;
  options.plan.kind = c.kind;
  options.plan.micro_batches = 2;
  options.plan.weave = c.weave;
  options.plan.delay_weight_gradients = c.delay;
  options.plan.overlap_dispatch_backward = c.first;
  return plan_step(options, pricer);
}

// One micro-batch's backward pass over a layer: "backward join", ...
std::vector<std::string> backward_of(const Plan& plan, const std::string& layer, int micro_batch = 0) {
  std::vector<std::string> names;
  for (const Node& node : plan.nodes)
    if ((node.phase == Phase::backward || node.phase == Phase::weight_gradient) && node.micro_batch == micro_batch &&
        node.piece.valid() && plan.place_of(node).layer == layer)
      names.push_back(std::string(name_of(node.phase)) + " " + plan.place_of(node).piece);
  return names;
}

std::vector<std::string> names_on(const Plan& plan, Lane lane) {
  std::vector<std::string> names;
  for (const Node& node : plan.nodes)
    if (node.lane == lane) names.push_back(plan.name_of(node));
  return names;
}

using Names = std::vector<std::string>;

TEST(OverlapDispatchBackward, comes_before_the_weight_gradients_of_the_experts) {
  EXPECT_EQ(backward_of(step_of({.first = false}).plan, "main.1E"),
            (Names{"backward join", "backward combine", "backward experts", "weight_gradient experts",
                   "backward dispatch", "backward route", "weight_gradient route"}));
  EXPECT_EQ(backward_of(step_of({}).plan, "main.1E"),
            (Names{"backward join", "backward combine", "backward experts", "backward dispatch",
                   "weight_gradient experts", "backward route", "weight_gradient route"}));
}

TEST(OverlapDispatchBackward, comes_before_the_shared_expert_too) {
  EXPECT_EQ(
      backward_of(step_of({.shared = true}).plan, "main.1E"),
      (Names{"backward join", "backward combine", "backward experts", "backward dispatch", "weight_gradient experts",
             "backward shared", "weight_gradient shared", "backward route", "weight_gradient route"}));
}

TEST(OverlapDispatchBackward, of_latent_experts_combine_is_beside_the_weights_of_the_sum) {
  const Names names = backward_of(step_of({.latent = 4}).plan, "main.1E");
  EXPECT_EQ((Names{names.begin(), names.begin() + 6}),
            (Names{"backward join", "backward combine", "weight_gradient join", "backward experts", "backward dispatch",
                   "weight_gradient experts"}));
}

// What is delayed waits for the end of the unit, except what hides the exchange.
TEST(OverlapDispatchBackward, goes_with_delayed_weight_gradients) {
  const Plan plan = step_of({.shared = true, .delay = true}).plan;
  EXPECT_EQ(backward_of(plan, "main.1E"), (Names{"backward join", "backward combine", "backward experts",
                                                 "backward dispatch", "weight_gradient experts", "backward shared",
                                                 "weight_gradient shared", "backward route", "weight_gradient route"}));
  const std::vector<std::string> compute = names_on(plan, Lane::compute);
  const auto at = [&](const char* name) { return std::find(compute.begin(), compute.end(), name); };
  EXPECT_LT(at("backward main.0*.mix@0"), at("weight_gradient main.1E.route@0"));
}

// Every strategy, with and without shared experts, delay and MTP: the same nodes, every lane in the same order, accepted
// by the checker, and of no more traffic.
TEST(OverlapDispatchBackward, keeps_the_order_of_every_lane) {
  using enum ShardingStrategy;
  for (const char* pattern : {"[*E]-", "+EE", "M*E[GE]/[*E]"})
    for (const ShardingStrategy sharding : {no_shard, optim, optim_grads, optim_grads_params})
      for (const bool shared : {false, true})
        for (const bool delay : {false, true}) {
          DispatchCase c{.pattern = pattern, .shared = shared, .delay = delay, .sharding = sharding};
          const StepPlan first = step_of(c);
          for (const PlanFault& fault : check_ranks(first.ranks())) ADD_FAILURE() << pattern << ": " << fault.message;
          c.first = false;
          const StepPlan plain = step_of(c);
          for (std::size_t lane = 0; lane < lane_count; ++lane) {
            if (static_cast<Lane>(lane) == Lane::gather)
              continue;  // they look ahead from their place in the whole list
            EXPECT_EQ(names_on(first.plan, static_cast<Lane>(lane)), names_on(plain.plan, static_cast<Lane>(lane)))
                << pattern << " " << name_of(sharding);
          }
          Names gathers = names_on(first.plan, Lane::gather), before = names_on(plain.plan, Lane::gather);
          std::sort(gathers.begin(), gathers.end());
          std::sort(before.begin(), before.end());
          EXPECT_EQ(gathers, before);
        }
}

TEST(OverlapDispatchBackward, leaves_plans_alone_that_are_woven_or_go_forward_only) {
  for (const bool weave : {false, true}) {
    DispatchCase c{.shared = true, .weave = weave, .kind = weave ? PlanKind::train : PlanKind::evaluate};
    const Plan first = step_of(c).plan;
    c.first = false;
    const Plan plain = step_of(c).plan;
    ASSERT_EQ(first.nodes.size(), plain.nodes.size());
    for (std::size_t i = 0; i < plain.nodes.size(); ++i)
      EXPECT_EQ(first.name_of(first.nodes[i]), plain.name_of(plain.nodes[i]));
  }
}

// Where every product takes a second and an exchange less than two, all of the backward dispatch is hidden. It is in the
// plain order too: nothing that it sends or receives belongs to the nodes that it goes before.
TEST(OverlapDispatchBackward, is_hidden_in_the_estimate) {
  const Pricer second = [](const Module&, const Plan&, const Node&) { return PieceCost{1e9, 0}; };
  Cluster cluster;
  cluster.flops = 1e9;
  cluster.node_overhead = 0;
  cluster.within = {.latency = 0.9, .bandwidth = 1e12};
  for (const bool first : {false, true}) {
    const StepPlan step = step_of({.pattern = "[*E][*E]", .first = first, .shared = true}, second);
    const Timeline timeline = estimate_timeline(step.ranks(), cluster);
    std::vector<TimeRange> compute, dispatch;
    for (const TimelineEvent& event : timeline.events) {
      if (event.rank != 0) continue;
      const TimelineLabel& label = timeline.labels[static_cast<std::size_t>(event.label)];
      if (label.lane == Lane::compute) compute.push_back({event.start, event.end});
      if (label.phase == Phase::backward && label.name.ends_with(".dispatch"))
        dispatch.push_back({event.start, event.end});
    }
    EXPECT_EQ(dispatch.size(), 4u) << "two layers, two micro-batches";
    const Overlap overlap = overlap_of(compute, dispatch, range_of(timeline).length());
    EXPECT_GT(overlap.communication, 4 * 0.9);
    EXPECT_NEAR(overlap.exposed, 0, 1e-9) << first;
  }
}

}  // namespace
}  // namespace weft
