// The experts' weight gradients hide the backward dispatch, the shared expert the backward combine.
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

TEST(OverlapDispatchBackward, leaves_the_shared_expert_to_combine) {
  EXPECT_EQ(
      backward_of(step_of({.first = false, .shared = true}).plan, "main.1E"),
      (Names{"backward join", "backward combine", "backward experts", "weight_gradient experts", "backward shared",
             "weight_gradient shared", "backward dispatch", "backward route", "weight_gradient route"}));
  EXPECT_EQ(backward_of(step_of({.shared = true}).plan, "main.1E"),
            (Names{"backward join", "backward combine", "backward shared", "weight_gradient shared", "backward experts",
                   "backward dispatch", "weight_gradient experts", "backward route", "weight_gradient route"}));
}

TEST(OverlapDispatchBackward, of_latent_experts_combine_is_beside_the_weights_of_the_sum) {
  const Names names = backward_of(step_of({.latent = 4}).plan, "main.1E");
  EXPECT_EQ((Names{names.begin(), names.begin() + 6}),
            (Names{"backward join", "backward combine", "weight_gradient join", "backward experts", "backward dispatch",
                   "weight_gradient experts"}));
}

// What is delayed waits for the end of the unit, except what hides an exchange.
TEST(OverlapDispatchBackward, goes_with_delayed_weight_gradients) {
  const Plan plan = step_of({.shared = true, .delay = true}).plan;
  EXPECT_EQ(backward_of(plan, "main.1E"),
            (Names{"backward join", "backward combine", "backward shared", "weight_gradient shared", "backward experts",
                   "backward dispatch", "weight_gradient experts", "backward route", "weight_gradient route"}));
  const std::vector<std::string> compute = names_on(plan, Lane::compute);
  const auto at = [&](const char* name) { return std::find(compute.begin(), compute.end(), name); };
  EXPECT_LT(at("backward main.0*.mix@0"), at("weight_gradient main.1E.route@0"));
}

// Every strategy, with and without shared experts, delay and MTP: accepted by the checker, with the same nodes, and all
// exchanges in the same order.
TEST(OverlapDispatchBackward, changes_only_the_order) {
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
          EXPECT_EQ(names_on(first.plan, Lane::exchange), names_on(plain.plan, Lane::exchange)) << pattern;
          for (std::size_t lane = 0; lane < lane_count; ++lane) {
            Names now = names_on(first.plan, static_cast<Lane>(lane)),
                  before = names_on(plain.plan, static_cast<Lane>(lane));
            std::sort(now.begin(), now.end());
            std::sort(before.begin(), before.end());
            EXPECT_EQ(now, before) << pattern << " " << name_of(sharding);
          }
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

// Where every node takes a second and a collective less than half of it (dispatch has two), dispatch' is hidden with and
// without a shared expert, and with one combine' too.
TEST(OverlapDispatchBackward, is_hidden_in_the_estimate) {
  const Pricer second = [](const Module&, const Plan&, const Node&) { return PieceCost{1e9, 0}; };
  Cluster cluster;
  cluster.flops = 1e9;
  cluster.node_overhead = 0;
  cluster.within = {.latency = 0.4, .bandwidth = 1e12};
  // Seconds that the backward exchanges of all layers and micro-batches are not hidden, on one rank.
  const auto exposed = [&](const DispatchCase& c, std::string_view piece) {
    const StepPlan step = step_of(c, second);
    const Timeline timeline = estimate_timeline(step.ranks(), cluster);
    std::vector<TimeRange> compute, exchange;
    for (const TimelineEvent& event : timeline.events) {
      if (event.rank != 0) continue;
      const TimelineLabel& label = timeline.labels[static_cast<std::size_t>(event.label)];
      if (label.lane == Lane::compute) compute.push_back({event.start, event.end});
      if (label.phase == Phase::backward && label.name.ends_with(piece)) exchange.push_back({event.start, event.end});
    }
    EXPECT_EQ(exchange.size(), 4u) << "two layers, two micro-batches";
    return overlap_of(compute, exchange, range_of(timeline).length()).exposed;
  };
  for (const bool shared : {false, true})
    EXPECT_NEAR(exposed({.pattern = "[*E][*E]", .shared = shared}, ".dispatch"), 0, 1e-6) << shared;
  EXPECT_NEAR(exposed({.pattern = "[*E][*E]", .shared = true}, ".combine"), 0, 1e-6);
  EXPECT_NEAR(exposed({.pattern = "[*E][*E]", .first = false, .shared = true}, ".combine"), 4 * 0.4, 1e-6);
}

}  // namespace
}  // namespace weft
