#include "weft/plan/passes/overlap_tensor.h"

#include <algorithm>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/plan/plans.h"

namespace weft {
namespace {

Plan tensor_plan(const char* pattern, bool woven) {
  PlanOptions options;
  options.micro_batches = 3;
  options.weave = woven;
  StepOptions step;
  step.config = small_config(pattern);
  step.module.batch = 2;
  step.module.length = 4;
  step.module.sequence_parallel = true;
  step.module.layout = Layout::of({.tp = 2});
  step.plan = options;
  return plan_step(step).plan;
}

// Nodes that compute with what a transfer brings that no computation hides.
int exposed(const Plan& plan) {
  int found = 0;
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    if (plan.nodes[i].lane != Lane::compute || plan.nodes[i].micro_batch < 0) continue;
    for (std::size_t t = i; t-- > 0 && plan.nodes[t].lane != Lane::compute;) {
      if (plan.nodes[t].lane != Lane::tensor) continue;
      const auto reads = [&](const BufferUse& made) {
        const auto uses = plan.uses_of(plan.nodes[i]);
        return made.access != Access::read &&
               std::any_of(uses.begin(), uses.end(), [&](const BufferUse& use) { return use.buffer == made.buffer; });
      };
      const auto made = plan.uses_of(plan.nodes[t]);
      if (std::any_of(made.begin(), made.end(), reads)) {
        ++found;
        break;
      }
    }
  }
  return found;
}

TEST(OverlapTensor, hides_transfers_behind_the_other_micro_batch) {
  const Plan plain = tensor_plan("*-*-", false), woven = tensor_plan("*-*-", true);
  const int before = exposed(plain), after = exposed(woven);
  EXPECT_GT(before, 30);
  // The first forward and the last backward pass are alone.
  EXPECT_LT(after, before / 2) << before;
}

TEST(OverlapTensor, keeps_every_node_and_every_order_within_a_pass) {
  const Plan woven = tensor_plan("[*-][*-]", true), plain = tensor_plan("[*-][*-]", false);
  ASSERT_EQ(woven.nodes.size(), plain.nodes.size());
  const auto names = [](const Plan& plan, int micro_batch, bool forward) {
    std::vector<std::string> list;
    for (const Node& node : plan.nodes)
      if (node.micro_batch == micro_batch && (node.phase == Phase::forward) == forward &&
          node.phase != Phase::weight_gradient && node.lane == Lane::compute)
        list.push_back(plan.name_of(node));
    return list;
  };
  for (int m = 0; m < 3; ++m)
    for (const bool forward : {false, true}) EXPECT_EQ(names(woven, m, forward), names(plain, m, forward)) << m;
}

TEST(OverlapTensor, changes_nothing_without_tensor_ranks) {
  PlanOptions options;
  options.micro_batches = 3;
  options.weave = true;
  const Plan plan = small_step("[*-][*E]", options, Layout::of_data_and_experts(2, 2)).plan;
  const Plan again = overlap_tensor(plan);
  ASSERT_EQ(again.nodes.size(), plan.nodes.size());
  for (std::size_t i = 0; i < plan.nodes.size(); ++i)
    EXPECT_EQ(again.name_of(again.nodes[i]), plan.name_of(plan.nodes[i]));
}

}  // namespace
}  // namespace weft
