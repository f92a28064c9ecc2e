// Faults that only several ranks together can have, in plans small enough to understand.
#include "weft/plan/check/check_ranks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/plan/random_plans.h"
#include "weft/plan/rank_classes.h"

namespace weft {
namespace {

// A plan of sums over ranks, on any lane, and of computations that read sums and make values that are summed later.
class Sums {
 public:
  Sums() {
    plan.kind = PlanKind::gradients;  // values need no reader
    plan.groups = Layout().group_names();
  }
  Sums& sum(const std::string& group, Lane lane, const std::string& value) {
    const BufferId buffer = buffer_of(value);
    plan.values[buffer.index()].summed_over = group_of(group);
    Node node = new_node("sum " + value, lane);
    node.kind = NodeKind::communicate;
    plan.uses.push_back({buffer, Access::write, -1});
    node.uses = 1;
    node.first_collective = static_cast<std::int32_t>(plan.collectives.size());
    node.collectives = 1;
    NodeCollective c;
    c.kind = CollectiveKind::all_reduce;
    c.group = group_of(group);
    c.send = c.receive = buffer;
    plan.collectives.push_back(c);
    plan.nodes.push_back(node);
    return *this;
  }
  Sums& make(const std::string& value, const std::vector<std::string>& from = {}) {
    Node node = new_node("make " + value, Lane::compute);
    node.piece = PieceId(node.place.value);
    for (const std::string& name : from) plan.uses.push_back({buffer_of(name), Access::read, -1});
    plan.uses.push_back({buffer_of(value), Access::write, -1});
    node.uses = static_cast<std::int32_t>(from.size()) + 1;
    plan.nodes.push_back(node);
    return *this;
  }

  Plan plan;

 private:
  Node new_node(const std::string& name, Lane lane) {
    plan.places.push_back({name, name, name, 0, 0});
    Node node;
    node.phase = Phase::forward;
    node.lane = lane;
    node.micro_batch = 0;
    node.place = PlaceId(std::ssize(plan.places) - 1);
    node.first_use = static_cast<std::int32_t>(plan.uses.size());
    return node;
  }
  BufferId buffer_of(const std::string& value) {
    for (std::size_t i = 0; i < plan.values.size(); ++i)
      if (plan.values[i].name == value) return BufferId(static_cast<std::int64_t>(i));
    plan.values.push_back({value, StorageClass::activation, DType::f32, {4}, 16});
    plan.buffers.push_back({ValueId(std::ssize(plan.values) - 1), 0, 0});
    return BufferId(std::ssize(plan.buffers) - 1);
  }
  GroupId group_of(const std::string& name) {
    const auto at = std::find(plan.groups.begin(), plan.groups.end(), name);
    if (at != plan.groups.end()) return GroupId(at - plan.groups.begin());
    plan.groups.push_back(name);
    return GroupId(std::ssize(plan.groups) - 1);
  }
};

RankPlans on_ranks(const std::vector<const Plan*>& plans, std::vector<std::int32_t> plan_of, int ep) {
  RankPlans ranks;
  for (const Plan* plan : plans) ranks.plans.push_back(RankPlans::Entry::without_memory(*plan));
  const Layout layout = Layout::of_data_and_experts(std::ssize(plan_of), ep);
  ranks.plan_of = std::move(plan_of);
  for (int id = 0; id < Layout::group_count; ++id) ranks.groups.push_back(layout.all_groups(GroupId(id)));
  return ranks;
}

void expect_fault(const RankPlans& ranks, const std::vector<std::string>& parts) {
  const std::vector<PlanFault> faults = check_ranks(ranks);
  ASSERT_EQ(faults.size(), 1u) << (faults.empty() ? "" : faults.back().message);
  for (const std::string& part : parts)
    EXPECT_NE(faults[0].message.find(part), std::string::npos) << "no '" << part << "' in\n" << faults[0].message;
}

TEST(CheckRanks, sums_on_two_lanes_in_one_order_are_fine) {
  Sums a, b;
  a.make("x").make("y").sum("dp", Lane::reduce, "x").sum("ep", Lane::exchange, "y");
  // Every communicator sees the same calls; the lists may differ where lanes do not wait for each other.
  b.make("x").make("y").sum("ep", Lane::exchange, "y").sum("dp", Lane::reduce, "x");
  EXPECT_TRUE(check_ranks(on_ranks({&a.plan, &b.plan}, {0, 1, 0, 1}, 2)).empty());
}

TEST(CheckRanks, two_lanes_that_wait_for_each_other_through_two_ranks) {
  Sums a, b;
  a.make("x").sum("dp", Lane::reduce, "x").make("y", {"x"}).sum("ep", Lane::exchange, "y");
  b.make("y").sum("ep", Lane::exchange, "y").make("x", {"y"}).sum("dp", Lane::reduce, "x");
  expect_fault(on_ranks({&a.plan, &b.plan}, {0, 1, 0, 1}, 2),
               {"none can proceed", "rank 0, node 1: forward sum x@0 waits in all_reduce of x@0 over 'dp' for rank 1",
                "rank 1, node 1: forward sum y@0 waits in all_reduce of y@0 over 'ep' for rank 0", "forward make"});
}

TEST(CheckRanks, two_groups_on_one_lane_in_two_orders) {
  Sums a, b;
  a.make("x").make("y").sum("dp", Lane::reduce, "x").sum("ep", Lane::reduce, "y");
  b.make("x").make("y").sum("ep", Lane::reduce, "y").sum("dp", Lane::reduce, "x");
  expect_fault(on_ranks({&a.plan, &b.plan}, {0, 1}, 2), {"none can proceed", "over 'dp' for rank 1", "over 'ep' for"});
}

TEST(CheckRanks, a_cycle_through_four_ranks) {
  // ep groups {0, 1}, {2, 3}; edp groups {0, 2}, {1, 3}. Ranks begin with different groups.
  Sums ep_first, edp_first;
  ep_first.make("x").make("y").sum("ep", Lane::reduce, "x").sum("edp", Lane::reduce, "y");
  edp_first.make("x").make("y").sum("edp", Lane::reduce, "y").sum("ep", Lane::reduce, "x");
  EXPECT_TRUE(check_ranks(on_ranks({&ep_first.plan, &edp_first.plan}, {0, 0, 0, 0}, 2)).empty());
  expect_fault(on_ranks({&ep_first.plan, &edp_first.plan}, {0, 1, 1, 0}, 2),
               {"none can proceed", "over 'ep' for rank 1", "over 'edp' for rank 3", "over 'ep' for rank 2",
                "over 'edp' for rank 0"});
  // Here 0 and 1 meet in ep, and then the others in edp.
  EXPECT_TRUE(check_ranks(on_ranks({&ep_first.plan, &edp_first.plan}, {0, 0, 1, 1}, 2)).empty());
}

TEST(CheckRanks, a_rank_that_calls_less_often) {
  Sums a, b;
  a.make("x").make("y").sum("dp", Lane::reduce, "x").sum("dp", Lane::reduce, "y");
  b.make("x").make("y").sum("dp", Lane::reduce, "x");
  expect_fault(on_ranks({&a.plan, &b.plan}, {0, 0, 1}, 1),
               {"in the number of calls of group 'dp' on lane reduce, ranks 0 and 2 differ: 2 and 1",
                "rank 0, node 3: forward sum y@0"});
}

TEST(CheckRanks, a_group_that_the_run_does_not_have) {
  Sums a;
  a.make("x").sum("strangers", Lane::reduce, "x");
  expect_fault(on_ranks({&a.plan}, {0, 0}, 1), {"communicates over 'strangers', but this rank is in no such group"});
}

TEST(RankClasses, tells_ranks_apart_by_plan_and_by_groups) {
  Sums a, b;
  const auto classes = [&](std::vector<std::int32_t> plan_of) {
    const RankPlans ranks = on_ranks({&a.plan, &b.plan}, std::move(plan_of), 2);
    return RankClasses(ranks).count();
  };
  EXPECT_EQ(classes({0, 0, 0, 0, 0, 0, 0, 0}), 1u);
  EXPECT_EQ(classes({0, 1, 0, 1, 0, 1, 0, 1}), 2u);
  // One odd rank: itself, its partner in ep, its partners in edp, and the rest.
  EXPECT_EQ(classes({0, 0, 0, 0, 0, 0, 0, 1}), 4u);
}

TEST(RankClasses, writes_ranks_as_ranges) {
  const auto text = [](std::vector<std::int64_t> numbers) {
    std::vector<RankId> ranks;
    for (std::int64_t n : numbers) ranks.emplace_back(n);
    return ranks_text(ranks);
  };
  EXPECT_EQ(text({3}), "rank 3");
  EXPECT_EQ(text({0, 1}), "ranks 0, 1");
  EXPECT_EQ(text({0, 1, 2, 5, 7, 8, 9}), "ranks 0 to 2, 5, 7 to 9");
}

// 16,384 ranks of one class cost no more than one.
TEST(CheckRanks, many_ranks_of_one_class) {
  RandomCase c;
  c.pattern = "[*E]";
  c.expert_ranks = 4;
  c.expert_shards = 4096;
  c.options.micro_batches = 2;
  c.options.weave = true;
  const StepPlan step = step_of(c);
  EXPECT_TRUE(check_ranks(step.ranks()).empty());
}

}  // namespace
}  // namespace weft
