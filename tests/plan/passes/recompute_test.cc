// Which nodes run again, where, and what that does to memory.
#include "weft/plan/passes/recompute.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "tests/plan/plans.h"
#include "weft/plan/check/check_ranks.h"
#include "weft/plan/simulate/estimate.h"

namespace weft {
namespace {

using Kind = Recomputation::Kind;
using Names = std::vector<std::string>;

StepPlan step_of(const std::string& pattern, const Recomputation& how, PlanOptions options = {}, int expert_ranks = 1) {
  options.recomputation = how;
  options.micro_batches = std::max(options.micro_batches, 2);
  StepPlan step = small_step(pattern, options, Layout::of({.dp = expert_ranks, .ep = expert_ranks}));
  require_valid(step.ranks());
  return step;
}

// The backward pass of the first micro-batch, in the order of the list, without weight gradients.
Names backward_of(const Plan& plan) {
  Names names;
  for (const Node& node : plan.nodes)
    if (node.micro_batch == 0 && node.phase != Phase::forward && node.phase != Phase::weight_gradient)
      names.push_back(std::string(name_of(node.phase)) + " " + plan.place_of(node).name);
  return names;
}
// The same by layers.
Names layers_of(const Plan& plan) {
  Names names;
  for (const Node& node : plan.nodes) {
    if (node.micro_batch != 0 || node.phase == Phase::forward || node.phase == Phase::weight_gradient) continue;
    std::string name = std::string(name_of(node.phase)) + " " + plan.place_of(node).layer;
    if (names.empty() || names.back() != name) names.push_back(std::move(name));
  }
  return names;
}

TEST(Recompute, comes_before_the_backward_pass_of_its_layer) {
  EXPECT_EQ(backward_of(step_of("*-", {Kind::uniform, 1}).plan),
            (Names{"backward final_norm.norm", "recompute main.1-.mix.norm", "recompute main.1-.mix.products",
                   "backward main.1-.mix", "recompute main.0*.mix.norm", "recompute main.0*.mix.in",
                   "recompute main.0*.mix.core", "backward main.0*.mix"}));
}

TEST(Recompute, a_stretch_runs_again_but_for_its_last_products) {
  EXPECT_EQ(backward_of(step_of("*E", {Kind::uniform, 2}).plan),
            (Names{"backward final_norm.norm", "recompute main.0*.mix.norm", "recompute main.0*.mix.in",
                   "recompute main.0*.mix.core", "recompute main.0*.mix.out", "recompute main.1E.route.norm",
                   "recompute main.1E.route.rows", "backward main.1E.join", "recompute main.1E.experts.up",
                   "backward main.1E.experts", "recompute main.1E.experts.act", "backward main.1E.route",
                   "backward main.0*.mix"}));
}

TEST(Recompute, block_leaves_later_layers_alone) {
  EXPECT_EQ(
      layers_of(step_of("*-*", {Kind::block, 1}).plan),
      (Names{"backward final_norm", "backward main.2*", "backward main.1-", "recompute main.0*", "backward main.0*"}));
}

TEST(Recompute, stretches_end_with_their_segment_and_mtp_depth) {
  EXPECT_EQ(layers_of(step_of("*|*-*/[*-]", {Kind::uniform, 2}).plan),
            (Names{"backward mtp1.final_norm", "recompute mtp1.0*", "recompute mtp1.1-", "backward mtp1.1-",
                   "backward mtp1.0*", "backward mtp1.input", "backward final_norm", "recompute main.3*",
                   "backward main.3*", "recompute main.1*", "recompute main.2-", "backward main.2-", "backward main.1*",
                   "recompute main.0*", "backward main.0*"}));
}

Names recomputed(const std::string& pattern, std::initializer_list<RecomputeModule> modules, int expert_ranks = 1) {
  const Plan plan = step_of(pattern, {Kind::modules, 1, set_of(modules)}, {}, expert_ranks).plan;
  Names names;
  for (const std::string& name : backward_of(plan))
    if (name.starts_with("recompute ")) names.push_back(name.substr(std::string("recompute ").size()));
  return names;
}

TEST(RecomputeModules, run_their_parts_of_every_layer_again) {
  using enum RecomputeModule;
  EXPECT_EQ(recomputed("+GD", {core_attn}), (Names{"main.2D.mix.core", "main.0+.mix.core"}));
  EXPECT_EQ(recomputed("*G*", {core_attn}), (Names{"main.2*.mix.core", "main.0*.mix.core"}));
  EXPECT_EQ(recomputed("M*-E", {layernorm}),
            (Names{"main.3E.route.norm", "main.2-.mix.norm", "main.1*.mix.norm", "main.0M.mix.norm"}));
  EXPECT_EQ(recomputed("M+-E", {mla_up_proj}), (Names{"main.1+.mix.up"}));
  EXPECT_EQ(recomputed("*-E", {mlp}), (Names{"main.1-.mix.products"}));
  EXPECT_EQ(recomputed("*-E", {moe_act}), (Names{"main.2E.experts.act"}));
  EXPECT_EQ(recomputed("GM", {gdn_norm_out}), (Names{"main.0G.mix.norm_out"}));
  EXPECT_EQ(recomputed("*E", {moe}), (Names{"main.1E.route.rows", "main.1E.experts.up", "main.1E.experts.act"}));
  EXPECT_EQ(recomputed("*E", {moe}, 2),
            (Names{"main.1E.route.rows", "main.1E.dispatch", "main.1E.experts.up", "main.1E.experts.act"}));
}

TEST(RecomputeModules, what_two_modules_share_runs_once) {
  using enum RecomputeModule;
  EXPECT_EQ(recomputed("*E", {moe, moe_act}), recomputed("*E", {moe}));
  EXPECT_EQ(
      recomputed("[+-]", {mlp, layernorm, core_attn, mla_up_proj}),
      (Names{"main.1-.mix.norm", "main.1-.mix.products", "main.0+.mix.norm", "main.0+.mix.up", "main.0+.mix.core"}));
}

// Rows are exchanged again, but neither counts nor results; and the host does not wait again.
TEST(Recompute, dispatch_runs_again_before_combine) {
  PlanOptions options;
  Names names = backward_of(step_of("[*E]", {Kind::uniform, 1}, options, 2).plan);
  std::erase_if(names, [](const std::string& name) { return name.find(".1E.") == std::string::npos; });
  EXPECT_EQ(names, (Names{"recompute main.1E.route.norm", "recompute main.1E.route.rows", "backward main.1E.join",
                          "recompute main.1E.dispatch", "backward main.1E.combine", "recompute main.1E.experts.up",
                          "backward main.1E.experts", "recompute main.1E.experts.act", "backward main.1E.dispatch",
                          "backward main.1E.route"}));
  options.weave = true;
  const Plan woven = step_of("[*E]", {Kind::uniform, 1}, options, 2).plan;
  Names exchanges;
  for (const Node& node : woven.nodes)
    if (node.lane == Lane::exchange && node.kind == NodeKind::communicate) exchanges.push_back(woven.name_of(node));
  EXPECT_EQ(exchanges,
            (Names{"forward main.1E.counts@0", "forward main.1E.dispatch@0", "forward main.1E.combine@0",
                   "recompute main.1E.dispatch@0", "backward main.1E.combine@0", "forward main.1E.counts@1",
                   "forward main.1E.dispatch@1", "backward main.1E.dispatch@0", "forward main.1E.combine@1",
                   "recompute main.1E.dispatch@1", "backward main.1E.combine@1", "backward main.1E.dispatch@1"}));
}

TEST(Recompute, keeps_the_input_of_a_stretch_and_nothing_else) {
  const Plan plan = step_of("*-*-", {Kind::uniform, 2}).plan;
  const MemoryPlan memory = plan_memory(plan);
  Names kept;
  for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
    const BufferId id(static_cast<std::int64_t>(b));
    const Lifetime life = memory.lifetimes[b];
    if (life.first < 0 || plan.value_of(id).storage != StorageClass::activation || plan.buffers[b].micro_batch != 0)
      continue;
    const auto phase = [&](std::int32_t node) { return plan.nodes[static_cast<std::size_t>(node)].phase; };
    if (phase(life.first) == Phase::forward && phase(life.last) != Phase::forward &&
        plan.value_of(id).name.rfind("main.", 0) == 0)
      kept.push_back(plan.name_of(id));
  }
  EXPECT_EQ(kept, (Names{"main.1-.y@0", "main.3-.y@0"}));
}

TEST(Recompute, takes_less_memory_and_as_many_flops_of_the_model) {
  const std::string pattern = "M*-GE*-E[*E]";
  const Pricer price = [](const Module&, const Plan&, const Node&) { return PieceCost{1, 1}; };
  const auto activations = [&](const Recomputation& how) {
    StepPlan step = step_of(pattern, how);
    weft::price(step.plan, step.module, price);
    return std::pair{step.memory.activations, total_flops(step.plan)};
  };
  const auto [kept, flops] = activations({});
  const auto [each, flops_of_each] = activations({Kind::uniform, 1});
  const auto [half, flops_of_half] = activations({Kind::block, 4});
  EXPECT_LT(2 * each, kept);
  EXPECT_LT(each, half);
  EXPECT_LT(half, kept);
  EXPECT_EQ(flops, flops_of_each);
  EXPECT_EQ(flops, flops_of_half);
}

TEST(Recompute, every_layer_of_every_plan_is_valid) {
  for (const char* pattern : {"M*-GE*", "[+E][DE]-", "E*E/[*E]/[*E]", "|*E||M"})
    for (const int expert_ranks : {1, 2})
      for (const bool weave : {false, true})
        for (const PlanKind kind : {PlanKind::train, PlanKind::gradients, PlanKind::evaluate})
          for (const Recomputation& how :
               {Recomputation{Kind::uniform, 1}, {Kind::uniform, 3}, {Kind::block, 2}, {Kind::modules, 1, 0xff}}) {
            PlanOptions options;
            options.kind = kind;
            options.weave = weave;
            options.delay_weight_gradients = weave;
            const Plan plan = step_of(pattern, how, options, expert_ranks).plan;
            const bool again = std::any_of(plan.nodes.begin(), plan.nodes.end(),
                                           [](const Node& node) { return node.phase == Phase::recompute; });
            EXPECT_EQ(again, kind != PlanKind::evaluate) << pattern;
          }
}

// A unit whose layers run again for a later one is gathered for that, released, and gathered for its own backward pass.
TEST(Recompute, gathers_again_what_runs_again_early) {
  PlanOptions options;
  options.micro_batches = 1;
  options.recomputation = {Kind::uniform, 2};
  const StepPlan step =
      small_step("[*-][*-]", options, Layout::of({.dp = 2}), {}, ShardingStrategy::optim_grads_params);
  Names names;
  for (const Node& node : step.plan.nodes)
    if (node.lane == Lane::gather && step.plan.place_of(node).layer == "main.0*")
      if (std::string name = step.plan.name_of(node); names.empty() || names.back() != name)
        names.push_back(std::move(name));
  EXPECT_EQ(names, (Names{"forward main.0*.mix.gather@0", "forward main.0*.mix.release@0",
                          "recompute main.0*.mix.gather@0", "recompute main.0*.mix.release@0",
                          "backward main.0*.mix.gather@0", "backward main.0*.mix.release@0"}));
}

}  // namespace
}  // namespace weft
