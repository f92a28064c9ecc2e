#include "weft/plan/passes/overlap_updates.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "tests/plan/plans.h"
#include "weft/plan/edges.h"
#include "weft/plan/memory.h"
#include "weft/plan/simulate/estimate.h"
#include "weft/plan/text.h"

namespace weft {
namespace {

Plan late_plan(const char* pattern, int micro_batches, double clip = 1) {
  PlanOptions options;
  options.micro_batches = micro_batches;
  options.overlap_updates = true;
  OptimizerSpec optimizer;
  optimizer.clip = clip;
  return small_step(pattern, options, {}, optimizer).plan;
}

// The names of the nodes that a node waits for.
std::set<std::string> names_before(const Plan& plan, const std::string& name) {
  const Edges edges = derive_edges(plan);
  std::set<std::string> names;
  for (std::size_t i = 0; i < plan.nodes.size(); ++i)
    if (plan.name_of(plan.nodes[i]) == name)
      for (NodeId id : edges.before(NodeId(static_cast<std::int64_t>(i))))
        names.insert(plan.name_of(plan.nodes[id.index()]));
  EXPECT_FALSE(names.empty()) << name;
  return names;
}

// What outlives steps is in memory before the first node.
TEST(OverlapUpdates, the_curve_of_memory_begins_with_the_step) {
  const Plan plan = late_plan("[*E]-", 2);
  const MemoryPlan memory = plan_memory(plan);
  const Timeline timeline = estimate_timeline(same_on_all_ranks(Layout::of_data_and_experts(2, 1), plan, memory), {});
  for (const auto& curve : timeline.memory) {
    EXPECT_EQ(curve.front().time, range_of(timeline).start);
    EXPECT_EQ(curve.front().bytes, static_cast<double>(memory.total() - memory.activations));
  }
  EXPECT_EQ(timeline.reserved, static_cast<double>(memory.total()));
}

TEST(OverlapUpdates, moves_only_the_updates) {
  const Plan plain = small_plan("[*E]-", 2), late = late_plan("[*E]-", 2);
  ASSERT_EQ(late.nodes.size(), plain.nodes.size());
  std::vector<std::string> rest, rest_late, updates;
  for (const Node& node : plain.nodes)
    if (plain.place_of(node).piece != "adamw") rest.push_back(plain.name_of(node));
  bool in_front = true;
  for (const Node& node : late.nodes) {
    in_front = in_front && node.carried;
    EXPECT_EQ(node.carried, in_front);
    EXPECT_EQ(node.lane == Lane::update, node.carried);
    (node.carried ? updates : rest_late).push_back(late.name_of(node));
  }
  EXPECT_EQ(rest_late, rest);
  // Embedding, [*E], -, final norm and head: in the order of the forward pass.
  EXPECT_EQ(updates, (std::vector<std::string>{"update unit.1.adamw", "update unit.2.adamw", "update unit.3.adamw",
                                               "update unit.4.adamw"}));
  EXPECT_NE(to_text(late, plan_memory(late)).find("node 0 update update unit.1.adamw of the previous step\n"),
            std::string::npos);
}

// The forward pass of a unit waits for the update of that unit, not for later ones. A gradient's first contribution and
// the next clip factor wait for the updates that read their previous contents.
TEST(OverlapUpdates, a_unit_waits_for_its_own_update) {
  const Plan plan = late_plan("--", 1);
  const auto before = [&](const std::string& name) { return names_before(plan, name); };
  EXPECT_EQ(before("forward embedding.lookup@0"), (std::set<std::string>{"update unit.1.adamw"}));
  EXPECT_EQ(before("forward main.0-.mix@0"),
            (std::set<std::string>{"update unit.2.adamw", "forward embedding.lookup@0"}));
  EXPECT_TRUE(before("weight_gradient main.1-.mix@0").contains("update unit.3.adamw"));
  for (const char* unit : {"1", "2", "3", "4"})
    EXPECT_TRUE(before("update step.clip").contains(std::string("update unit.") + unit + ".adamw"));
}

TEST(OverlapUpdates, needs_no_memory) {
  const Plan plain = small_plan("[*E]-", 2), late = late_plan("[*E]-", 2);
  EXPECT_EQ(plan_memory(late).total(), plan_memory(plain).total());
}

// Without clipping nothing needs all gradients, so most updates run in their own step.
TEST(OverlapUpdates, without_a_norm_most_run_beside_the_backward_pass) {
  const Plan plan = late_plan("------", 1, 0);  // units: 1 the embedding, 2 to 7, 8 final norm and head
  std::vector<std::string> carried, own;
  for (const Node& node : plan.nodes) {
    if (node.phase != Phase::update) continue;
    EXPECT_EQ(node.lane, Lane::update) << plan.name_of(node);
    (node.carried ? carried : own).push_back(plan.name_of(node));
  }
  EXPECT_EQ(carried, (std::vector<std::string>{"update unit.1.adamw", "update unit.3.adamw", "update unit.6.adamw"}));
  EXPECT_EQ(own, (std::vector<std::string>{"update step.numbers", "update unit.8.adamw", "update unit.7.adamw",
                                           "update unit.5.adamw", "update unit.4.adamw", "update unit.2.adamw"}));
  // Carried nodes come first.
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) EXPECT_EQ(plan.nodes[i].carried, i < 3);
  EXPECT_EQ(names_before(plan, "forward main.0-.mix@0"), (std::set<std::string>{"forward embedding.lookup@0"}));
  EXPECT_EQ(names_before(plan, "forward main.1-.mix@0"),
            (std::set<std::string>{"update unit.3.adamw", "forward main.0-.mix@0"}));
  EXPECT_EQ(names_before(plan, "update step.numbers"),
            (std::set<std::string>{"forward head.loss@0", "update unit.1.adamw", "update unit.3.adamw",
                                   "update unit.6.adamw"}));
  // It waits for nodes that read its weights, for those that add to its gradients and for the numbers, but not for the
  // end of the backward pass.
  EXPECT_EQ(names_before(plan, "update unit.4.adamw"),
            (std::set<std::string>{"update step.numbers", "forward main.2-.mix@0", "backward main.2-.mix@0",
                                   "weight_gradient main.2-.mix@0"}));
  EXPECT_EQ(plan_memory(plan).total(), small_step("------", {}, {}, {.clip = 0}).memory.total());
}

}  // namespace
}  // namespace weft
