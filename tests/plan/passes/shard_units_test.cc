// What is gathered and reduced together is a unit of the plan, in bracket patterns and in flat ones, plain and overlapped
// (scenario A1).
#include <algorithm>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "tests/plan/plans.h"

namespace weft {
namespace {

struct UnitCase {
  const char* pattern;
  int units;  // of layers
};

void PrintTo(const UnitCase& c, std::ostream* out) { *out << c.pattern; }

class ShardUnits : public testing::TestWithParam<UnitCase> {};

Plan plan_of(const char* pattern, ShardingStrategy strategy, const PlanOptions& order, bool by_piece) {
  PlanOptions options = order;
  options.micro_batches = 3;
  options.gather_by_piece = by_piece;
  const Layout layout = Layout::of({.dp = 4, .ep = 2});
  return small_step(pattern, options, layout, {}, strategy).plan;
}

std::vector<PlanOptions> orders() {
  PlanOptions woven, delayed, dispatch;
  woven.weave = true;
  delayed = woven;
  delayed.delay_weight_gradients = true;
  dispatch.overlap_dispatch_backward = true;
  return {{}, woven, delayed, dispatch};
}

bool starts_with(const Plan& plan, const Node& node, CollectiveKind kind) {
  const auto list = plan.collectives_of(node);
  return !list.empty() && list.front().kind == kind && node.lane != Lane::exchange;
}

TEST_P(ShardUnits, are_gathered_once_per_direction_and_micro_batch) {
  const int layers = GetParam().units, all = layers + 2;  // with the embedding, and with final norm and head
  for (const PlanOptions& order : orders()) {
    const Plan plan = plan_of(GetParam().pattern, ShardingStrategy::optim_grads_params, order, false);
    std::map<int, int> forward, backward, reduced;  // by micro-batch
    std::set<int> units;
    for (const Node& node : plan.nodes) {
      if (starts_with(plan, node, CollectiveKind::all_gather)) {
        ++(node.phase == Phase::forward ? forward : backward)[node.micro_batch];
        units.insert(plan.place_of(node).unit);
      }
      if (starts_with(plan, node, CollectiveKind::reduce_scatter)) ++reduced[node.micro_batch];
    }
    EXPECT_EQ(static_cast<int>(units.size()), all);
    for (int m = 0; m < 3; ++m) {
      EXPECT_EQ(forward[m], all);
      EXPECT_EQ(backward[m], layers + 1) << "the lookup needs no weights to go back, the final norm does";
      EXPECT_EQ(reduced[m], all);
    }
  }
}

TEST_P(ShardUnits, of_pieces_are_the_same) {
  std::set<std::set<int>> counted;
  for (const ShardingStrategy strategy :
       {ShardingStrategy::optim, ShardingStrategy::optim_grads, ShardingStrategy::optim_grads_params})
    for (const PlanOptions& order : orders()) {
      const Plan plan = plan_of(GetParam().pattern, strategy, order, true);
      std::set<int> units;
      for (const Node& node : plan.nodes)
        if (starts_with(plan, node, CollectiveKind::all_gather)) units.insert(plan.place_of(node).unit);
      EXPECT_EQ(static_cast<int>(units.size()), GetParam().units + 2);
      counted.insert(units);
    }
  EXPECT_EQ(counted.size(), 1u);
}

// Each depth has its input projection and its layers; the embedding is gathered again for the projections, and the head is
// there for all depths at once.
TEST(ShardUnitsOfMtp, are_projections_and_layers_of_every_depth) {
  for (const PlanOptions& order : orders()) {
    const Plan plan = plan_of("[*E][*E]/[*E]/[*E]", ShardingStrategy::optim_grads_params, order, false);
    std::map<std::string, std::map<int, int>> forward;  // gathers, by unit and micro-batch
    std::map<std::string, int> released;
    for (const Node& node : plan.nodes) {
      if (starts_with(plan, node, CollectiveKind::all_gather) && node.phase == Phase::forward)
        ++forward[plan.place_of(node).layer][node.micro_batch];
      if (node.kind == NodeKind::release) ++released[plan.place_of(node).layer];
    }
    EXPECT_EQ(forward.size(), 9u) << "embedding, two layers, final norm, twice a projection and a layer, head";
    for (const auto& [unit, by_micro_batch] : forward)
      for (const auto& [micro_batch, times] : by_micro_batch)
        EXPECT_EQ(times, unit == "unit.1" ? 3 : 1) << unit << " micro-batch " << micro_batch;
    EXPECT_EQ(released.size(), 9u);
  }
}

INSTANTIATE_TEST_SUITE_P(Brackets, ShardUnits,
                         testing::Values(UnitCase{"[*E][*E]", 2}, UnitCase{"[M*E][M*E]", 2}, UnitCase{"[+E][+E]", 2},
                                         UnitCase{"[*E][*-][GE][M*E]", 4}),
                         [](const auto& tested) { return "of_" + std::to_string(tested.index); });
INSTANTIATE_TEST_SUITE_P(Flat, ShardUnits,
                         testing::Values(UnitCase{"*E*E", 2}, UnitCase{"M*EM*E", 2}, UnitCase{"+E+E", 2},
                                         UnitCase{"MEM*EME", 3}, UnitCase{"*-*E-M", 4}),
                         [](const auto& tested) { return "of_" + std::to_string(tested.index); });
INSTANTIATE_TEST_SUITE_P(Mixed, ShardUnits, testing::Values(UnitCase{"M[*E]*E", 3}, UnitCase{"[+E]M-[+-]E", 4}),
                         [](const auto& tested) { return "of_" + std::to_string(tested.index); });

}  // namespace
}  // namespace weft
