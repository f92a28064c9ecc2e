#include "weft/plan/plan.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "tests/plan/plans.h"
#include "weft/base/file.h"
#include "weft/plan/check/check.h"
#include "weft/plan/edges.h"
#include "weft/plan/memory.h"
#include "weft/plan/text.h"

namespace weft {
namespace {

TEST(Plan, text_equals_the_golden_file) {
  const Plan plan = small_plan("[*E]-", 2);
  const std::string text = to_text(plan, plan_memory(plan));
  const std::filesystem::path file =
      std::filesystem::path(WEFT_SOURCE_DIR) / "tests/plan/golden/attention_experts_mlp.plan";
  if (std::getenv("WEFT_WRITE_GOLDEN")) std::ofstream(file) << text;
  EXPECT_EQ(text, read_file(file))
      << "if the change is intended, run plan_test with WEFT_WRITE_GOLDEN=1 and review the difference";
}

TEST(Plan, brackets_change_no_node_and_no_parameter) {
  const Plan flat = small_plan("*E-", 2), grouped = small_plan("[*E]-", 2);
  ASSERT_EQ(flat.nodes.size(), grouped.nodes.size());
  for (std::size_t i = 0; i < flat.nodes.size(); ++i)
    EXPECT_EQ(flat.name_of(flat.nodes[i]), grouped.name_of(grouped.nodes[i]));
  const Module a = small_step("*E-", {}).module, b = small_step("[*E]-", {}).module;
  ASSERT_EQ(a.parameters.size(), b.parameters.size());
  for (std::size_t i = 0; i < a.parameters.size(); ++i)
    EXPECT_EQ(a.parameters[i].parts.front().identity, b.parameters[i].parts.front().identity);
}

TEST(Plan, every_gradient_gets_a_contribution_from_every_micro_batch_in_order) {
  const Plan plan = small_plan("*E-", 3);
  std::map<std::int32_t, std::vector<std::int32_t>> contributions;
  for (const Node& node : plan.nodes)
    for (const BufferUse& use : plan.uses_of(node))
      if (use.access == Access::add && plan.value_of(use.buffer).storage == StorageClass::gradient)
        contributions[use.buffer.value].push_back(use.contribution);
  EXPECT_GT(contributions.size(), 10u);
  for (const auto& [buffer, numbers] : contributions) {
    ASSERT_EQ(numbers.size() % 3, 0u) << plan.name_of(BufferId(buffer));
    for (std::size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], static_cast<std::int32_t>(i));
  }
}

TEST(Edges, follow_from_the_uses) {
  const Plan plan = small_plan("-", 1);
  const Edges edges = derive_edges(plan);
  const auto index_of = [&](const std::string& name) {
    for (std::size_t i = 0; i < plan.nodes.size(); ++i)
      if (plan.name_of(plan.nodes[i]) == name) return NodeId(static_cast<std::int64_t>(i));
    ADD_FAILURE() << "no node " << name;
    return NodeId{};
  };
  const auto waits = [&](const std::string& after, const std::string& before) {
    const auto list = edges.before(index_of(after));
    return std::find(list.begin(), list.end(), index_of(before)) != list.end();
  };
  EXPECT_TRUE(waits("forward main.0-.mix@0", "forward embedding.lookup@0"));
  EXPECT_TRUE(waits("weight_gradient main.0-.mix@0", "backward main.0-.mix@0"));
  // The weight gradient delays nothing: the embedding's waits only for the MLP's backward.
  EXPECT_TRUE(waits("weight_gradient embedding.lookup@0", "backward main.0-.mix@0"));
  EXPECT_FALSE(waits("weight_gradient embedding.lookup@0", "weight_gradient main.0-.mix@0"));
}

TEST(MemoryPlan, buffers_alive_together_never_overlap_and_memory_is_reused) {
  for (const char* pattern : {"*", "[*E]-", "EE*-"}) {
    const Plan plan = small_plan(pattern, 2);
    const MemoryPlan memory = plan_memory(plan);
    std::int64_t naive = 0;
    for (std::size_t a = 0; a < plan.buffers.size(); ++a) {
      if (memory.offset[a] < 0 || memory.lifetimes[a].first < 0) continue;
      const std::int64_t size = plan.value_of(BufferId(static_cast<std::int64_t>(a))).bytes;
      naive += (size + MemoryPlan::alignment - 1) / MemoryPlan::alignment * MemoryPlan::alignment;
      EXPECT_EQ(memory.offset[a] % MemoryPlan::alignment, 0);
      EXPECT_LE(memory.offset[a] + size, memory.arena);
      for (std::size_t b = 0; b < a; ++b) {
        if (memory.offset[b] < 0 || memory.lifetimes[b].first < 0) continue;
        const std::int64_t other = plan.value_of(BufferId(static_cast<std::int64_t>(b))).bytes;
        const bool same_bytes =
            memory.offset[a] < memory.offset[b] + other && memory.offset[b] < memory.offset[a] + size;
        const bool same_time = memory.lifetimes[a].first <= memory.lifetimes[b].last &&
                               memory.lifetimes[b].first <= memory.lifetimes[a].last;
        EXPECT_FALSE(same_bytes && same_time) << plan.name_of(BufferId(static_cast<std::int64_t>(a))) << " and "
                                              << plan.name_of(BufferId(static_cast<std::int64_t>(b)));
      }
    }
    EXPECT_LT(memory.arena, naive) << "memory is never reused";
    EXPECT_TRUE(memory.reuses.empty()) << "on one lane memory is always known to be free";
  }
}

// One copy transfers everything that the host writes, and nodes write nothing there.
TEST(MemoryPlan, what_the_host_writes_is_contiguous_at_the_beginning) {
  const Plan plan = small_plan("[*E]-", 2);
  const MemoryPlan memory = plan_memory(plan);
  std::set<std::string> given, written;
  for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
    const std::string name = plan.name_of(BufferId(static_cast<std::int64_t>(b)));
    if (memory.offset[b] >= 0 && memory.offset[b] < memory.inputs_end)
      given.insert(name);
    else if (memory.offset[b] >= 0 && memory.offset[b] < memory.step_values_end)
      written.insert(name);
  }
  EXPECT_EQ(given, (std::set<std::string>{"tokens@0", "tokens@1", "labels@0", "labels@1", "loss_scales@0",
                                          "loss_scales@1", "step_values"}));
  EXPECT_EQ(written, (std::set<std::string>{"loss", "squares", "update_values"}));
  for (const BufferUse& use : plan.uses) {
    const std::int64_t offset = memory.offset[use.buffer.index()];
    EXPECT_FALSE(use.access != Access::read && offset >= 0 && offset < memory.inputs_end) << plan.name_of(use.buffer);
  }
}

// Damage a good plan; the checker must object and name the node.
class Damage : public testing::Test {
 protected:
  Plan plan = small_plan("[*E]-", 2);
  void SetUp() override { ASSERT_TRUE(check_plan(plan).empty()); }
  std::size_t find(const std::string& name) const {
    for (std::size_t i = 0; i < plan.nodes.size(); ++i)
      if (plan.name_of(plan.nodes[i]) == name) return i;
    ADD_FAILURE() << "no node " << name;
    return 0;
  }
  void expect_fault(const std::string& message) const {
    const std::vector<PlanFault> faults = check_plan(plan);
    for (const PlanFault& fault : faults)
      if (fault.message.find(message) != std::string::npos) {
        EXPECT_NE(fault.message.find("node "), std::string::npos);
        return;
      }
    ADD_FAILURE() << "no fault '" << message << "' among " << faults.size()
                  << (faults.empty() ? "" : ": " + faults[0].message);
  }
};

TEST_F(Damage, a_backward_before_its_forward) {
  std::swap(plan.nodes[find("forward main.2-.mix@0")], plan.nodes[find("backward main.2-.mix@0")]);
  expect_fault("is read before it is written");
}
TEST_F(Damage, a_missing_contribution) {
  plan.nodes.erase(plan.nodes.begin() + static_cast<std::ptrdiff_t>(find("weight_gradient main.0*.mix@1")));
  expect_fault("d(main.0*.qkv_weight) gets 1 contributions and needs 2");
}
TEST_F(Damage, a_contribution_counted_twice) {
  const std::size_t at = find("weight_gradient main.0*.mix@1");
  plan.nodes.insert(plan.nodes.begin() + static_cast<std::ptrdiff_t>(at), plan.nodes[at]);
  expect_fault("is counted twice");
}
TEST_F(Damage, contributions_out_of_order) {
  std::swap(plan.nodes[find("weight_gradient main.0*.mix@0")], plan.nodes[find("weight_gradient main.0*.mix@1")]);
  expect_fault("comes before contribution");
}
TEST_F(Damage, an_update_before_the_last_gradient) {
  const Node update = plan.nodes[find("update step.norm")];
  plan.nodes.erase(plan.nodes.begin() + static_cast<std::ptrdiff_t>(find("update step.norm")));
  plan.nodes.insert(plan.nodes.begin() + static_cast<std::ptrdiff_t>(find("backward main.0*.mix@1")), update);
  expect_fault("is read after");
}
TEST_F(Damage, an_activation_nobody_reads) {
  plan.nodes.erase(plan.nodes.begin() + static_cast<std::ptrdiff_t>(find("backward main.1E.route@0")));
  expect_fault("written and never read");
}
TEST_F(Damage, a_node_that_runs_twice) {
  const std::size_t at = find("forward main.1E.route@0");
  plan.nodes.insert(plan.nodes.begin() + static_cast<std::ptrdiff_t>(at), plan.nodes[at]);
  expect_fault("is written twice");
}
TEST_F(Damage, the_head_before_the_final_norm) {
  std::swap(plan.nodes[find("forward final_norm.norm@0")], plan.nodes[find("forward head.loss@0")]);
  expect_fault("the head runs before the final norm");
}
TEST_F(Damage, the_head_before_the_final_norm_whatever_they_are_called) {
  for (PlaceInfo& piece : plan.places) piece.layer = "renamed";
  std::swap(plan.nodes[find("forward final_norm.norm@0")], plan.nodes[find("forward head.loss@0")]);
  expect_fault("the head runs before the final norm");
}
TEST_F(Damage, a_gradient_no_update_uses) {
  std::erase_if(plan.nodes, [&](const Node& node) {
    return plan.name_of(node).starts_with("update unit.") || plan.name_of(node) == "update step.norm";
  });
  expect_fault("is never used by an update");
}

}  // namespace
}  // namespace weft
