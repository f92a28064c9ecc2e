// Which free memory a node takes over.
#include <gtest/gtest.h>

#include "tests/plan/plans.h"
#include "weft/plan/edges.h"

namespace weft {
namespace {

// Nodes on two lanes, and activations of some KiB.
struct TwoLanes {
  Plan plan;

  BufferId buffer(const char* name, std::int64_t kib) {
    ValueInfo value;
    value.name = name;
    value.shape = {kib * 256};
    value.bytes = kib << 10;
    return plan.add_buffer(plan.add_value(value));
  }
  void node(Lane lane, const std::vector<BufferUse>& uses) {
    plan.nodes.push_back(
        plan.make_node(NodeKind::compute, Phase::forward, lane, plan.add_place(0, "layer", "piece"), -1, uses));
  }
};

TEST(Memory, of_users_that_are_done_is_taken_before_memory_that_fits_better) {
  TwoLanes t;
  const BufferId reduced = t.buffer("reduced", 4), read = t.buffer("read", 9), other = t.buffer("other", 10);
  const BufferId between = t.buffer("between", 6), behind = t.buffer("behind", 3);
  const BufferId first = t.buffer("first", 4), second = t.buffer("second", 4), third = t.buffer("third", 4);
  t.node(Lane::compute,
         {{reduced, Access::write}, {read, Access::write}, {between, Access::write}, {behind, Access::write}});
  t.node(Lane::reduce, {{reduced}});
  t.node(Lane::compute, {{read}});
  t.node(Lane::reduce, {{other, Access::write}});  // `reduced` is known to be free here, not on the other lane
  for (const BufferId taken : {first, second, third}) t.node(Lane::compute, {{taken, Access::write}});
  t.node(Lane::compute, {{first}, {second}, {third}, {between}, {behind}});
  const MemoryPlan memory = plan_memory(t.plan);
  const auto at = [&](BufferId buffer) { return memory.offset[buffer.index()]; };
  for (const BufferId taken : {first, second}) {
    EXPECT_GE(at(taken), at(read));
    EXPECT_LT(at(taken), at(read) + (9 << 10));
  }
  EXPECT_EQ(at(third), at(reduced)) << "nothing else is left";
  ASSERT_EQ(memory.reuses.size(), 1u);
  EXPECT_EQ(memory.reuses[0].node, NodeId(6));
  EXPECT_EQ(memory.reuses[0].after[static_cast<std::size_t>(Lane::reduce)], 1);
}

TEST(Memory, that_must_be_waited_for_is_that_whose_users_come_first) {
  TwoLanes t;
  const BufferId early = t.buffer("early", 9), late = t.buffer("late", 4), other = t.buffer("other", 10);
  const BufferId between = t.buffer("between", 6), behind = t.buffer("behind", 3), taken = t.buffer("taken", 4);
  t.node(Lane::compute,
         {{early, Access::write}, {late, Access::write}, {between, Access::write}, {behind, Access::write}});
  t.node(Lane::reduce, {{early}});
  t.node(Lane::reduce, {{late}});
  t.node(Lane::reduce, {{other, Access::write}});
  t.node(Lane::compute, {{taken, Access::write}});
  t.node(Lane::compute, {{between}, {behind}});
  const MemoryPlan memory = plan_memory(t.plan);
  ASSERT_EQ(memory.reuses.size(), 1u);
  EXPECT_EQ(memory.reuses[0].after[static_cast<std::size_t>(Lane::reduce)], 1);
}

}  // namespace
}  // namespace weft
