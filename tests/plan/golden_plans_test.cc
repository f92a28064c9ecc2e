// Whole plans as text: a changed order shows in review.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "tests/plan/plans.h"
#include "weft/base/file.h"
#include "weft/plan/text.h"

namespace weft {
namespace {

struct GoldenPlan {
  const char* name;
  bool weave, delay, late;
  ShardingStrategy sharding = ShardingStrategy::no_shard;
  int instances = 1;  // of the optimizer, which divide what they hold
  bool dispatch_first = false;
  Recomputation recomputation = {};
};

void expect_golden(const char* name, const StepPlan& step) {
  const std::string text = to_text(step.plan, step.memory);
  const std::filesystem::path file =
      std::filesystem::path(WEFT_SOURCE_DIR) / "tests/plan/golden" / (std::string(name) + ".plan");
  if (std::getenv("WEFT_WRITE_GOLDEN")) std::ofstream(file) << text;
  EXPECT_EQ(text, read_file(file))
      << "if the change is intended, run plan_test with WEFT_WRITE_GOLDEN=1 and review the difference";
}

class GoldenPlans : public testing::TestWithParam<GoldenPlan> {};

// Two layers of experts on two ranks that hold different experts, or two per instance; three micro-batches.
TEST_P(GoldenPlans, text_equals_the_file) {
  PlanOptions options;
  options.micro_batches = 3;
  options.weave = GetParam().weave;
  options.delay_weight_gradients = GetParam().delay;
  options.overlap_updates = GetParam().late;
  options.overlap_dispatch_backward = GetParam().dispatch_first;
  options.recomputation = GetParam().recomputation;
  const int instances = GetParam().instances;
  const Layout layout = Layout::of({.dp = 2 * instances, .ep = 2, .instances = instances});
  const StepPlan step = small_step("[*E]-E", options, layout, {}, GetParam().sharding, instances > 1);
  expect_golden(GetParam().name, step);
}

INSTANTIATE_TEST_SUITE_P(
    Orders, GoldenPlans,
    testing::Values(GoldenPlan{"woven_ep2", true, false, false}, GoldenPlan{"delayed_ep2", true, true, false},
                    GoldenPlan{"late_updates_ep2", true, true, true},
                    GoldenPlan{"dispatch_first_ep2", false, false, false, ShardingStrategy::no_shard, 1, true},
                    GoldenPlan{"recomputed_ep2",
                               true,
                               true,
                               false,
                               ShardingStrategy::no_shard,
                               1,
                               false,
                               {Recomputation::Kind::uniform, 1}},
                    GoldenPlan{"sharded_ep2", true, true, false, ShardingStrategy::optim_grads_params},
                    GoldenPlan{"two_instances_ep2", true, true, false, ShardingStrategy::optim_grads_params, 2}),
    [](const auto& golden) { return std::string(golden.param.name); });

// A stage each of two pipelines, with three micro-batches: the last one of zero-bubble, and the first of two virtual stages,
// woven.
TEST(GoldenStages, text_equals_the_golden_file) {
  PlanOptions options;
  options.micro_batches = 3;
  const Layout layout = Layout::of({.dp = 2, .pp = 2, .ep = 2});
  options.order = OrderKind::zero_bubble;
  expect_golden("zero_bubble_last_stage", small_step("[*E]|-", options, layout.seen_from(RankId(2))));
  options.order = OrderKind::automatic;
  options.weave = options.delay_weight_gradients = true;
  expect_golden("interleaved_woven_first_stage", small_step("E|-|E|-", options, layout));
}

}  // namespace
}  // namespace weft
