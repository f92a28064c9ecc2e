// Times of small plans, worked out by hand; and runs that cannot end.
#include <gtest/gtest.h>

#include "tests/plan/passes/stage_transfers.h"
#include "tests/plan/plans.h"
#include "weft/plan/check/check_ranks.h"
#include "weft/plan/rank_classes.h"
#include "weft/plan/simulate/engine.h"

namespace weft {
namespace {

// Two ranks per machine. One FLOP takes a second; a byte takes one within a machine and four between.
Cluster slow_cluster() {
  Cluster c;
  c.flops = c.bytes = 1;
  c.node_overhead = 0;
  c.ranks_per_machine = 2;
  c.within = {.latency = 1, .bandwidth = 1};
  c.between = {.latency = 8, .bandwidth = 0.25};
  return c;
}

NodeCollective call(CollectiveKind kind, std::int64_t bytes) {
  NodeCollective c;
  c.kind = kind;
  c.group = GroupId(0);
  c.bytes = bytes;
  return c;
}

RankGroup ranks_of(std::initializer_list<int> ranks) {
  RankGroup group;
  for (int rank : ranks) group.push_back(RankId(rank));
  return group;
}

// A plan whose nodes make, combine and communicate values of one micro-batch, over one group.
class Steps {
 public:
  Steps() {
    plan.kind = PlanKind::gradients;  // values need no reader
    plan.groups = {"all"};
  }
  Steps& compute(const std::string& value, double seconds, const std::vector<std::string>& from = {}) {
    std::vector<BufferUse> used;
    for (const std::string& name : from) used.push_back({buffer_of(name)});
    used.push_back({buffer_of(value), Access::write});
    add(NodeKind::compute, Lane::compute, "make " + value, used, {});
    plan.nodes.back().piece = PieceId(plan.nodes.back().place.value);
    plan.nodes.back().flops = seconds;
    return *this;
  }
  Steps& sum(const std::string& value, std::int64_t bytes, Lane lane = Lane::reduce) {
    NodeCollective c = call(CollectiveKind::all_reduce, bytes);
    c.send = c.receive = buffer_of(value);
    plan.values[c.send.index()].summed_over = c.group;
    const BufferUse use{c.send, Access::write};
    return add(NodeKind::communicate, lane, "sum " + value, {&use, 1}, {&c, 1});
  }
  struct Way {
    std::string value;
    std::int32_t peer;
    bool sends;
    std::int32_t match = 0;
  };
  Steps& transfer(const std::vector<Way>& ways) {
    std::vector<NodeCollective> made;
    std::vector<BufferUse> used;
    for (const Way& way : ways) {
      NodeCollective& c =
          made.emplace_back(call(way.sends ? CollectiveKind::send : CollectiveKind::receive, way.sends ? 16 : 0));
      c.peer = way.peer;
      c.match = MatchId(way.match);
      (way.sends ? c.send : c.receive) = buffer_of(way.value);
      used.push_back({buffer_of(way.value), way.sends ? Access::read : Access::write});
    }
    return add(NodeKind::communicate, Lane::tensor, "move " + ways.front().value, used, made);
  }
  Steps& send(const std::string& value, std::int32_t peer) { return transfer({{value, peer, true}}); }
  Steps& receive(const std::string& value, std::int32_t peer) { return transfer({{value, peer, false}}); }

  Plan plan;

 private:
  Steps& add(NodeKind kind, Lane lane, const std::string& name, std::span<const BufferUse> used,
             std::span<const NodeCollective> communication) {
    plan.places.push_back({name, name, name, 0, 0});
    plan.nodes.push_back(
        plan.make_node(kind, Phase::forward, lane, PlaceId(std::ssize(plan.places) - 1), 0, used, communication));
    return *this;
  }
  BufferId buffer_of(const std::string& value) {
    for (std::size_t i = 0; i < plan.values.size(); ++i)
      if (plan.values[i].name == value) return BufferId(static_cast<std::int64_t>(i));
    return plan.add_buffer(plan.add_value({value, StorageClass::activation, DType::f32, {4}, 16}), 0);
  }
};

// All ranks in one group.
RankPlans on_ranks(const std::vector<const Steps*>& steps, std::vector<std::int32_t> plan_of) {
  RankPlans ranks;
  for (const Steps* s : steps) ranks.plans.push_back(RankPlans::Entry::without_memory(s->plan));
  RankGroup all;
  for (std::size_t r = 0; r < plan_of.size(); ++r) all.push_back(RankId(static_cast<std::int64_t>(r)));
  ranks.plan_of = std::move(plan_of);
  ranks.groups = {{all}};
  return ranks;
}

Simulation run(const RankPlans& ranks, const Cluster& cluster = slow_cluster()) {
  return simulate(ranks, RankClasses(ranks), &cluster);
}

using Times = std::vector<double>;

TEST(Cluster, knows_where_groups_are) {
  const Cluster c = slow_cluster();
  EXPECT_EQ(place_of(ranks_of({0, 1}), c), (GroupPlace{2, 2, 2}));
  EXPECT_EQ(place_of(ranks_of({1, 2}), c), (GroupPlace{2, 1, 1}));
  EXPECT_EQ(place_of(ranks_of({5, 0, 4, 1, 2}), c), (GroupPlace{5, 1, 2}));
  Cluster one = c;
  one.ranks_per_machine = 0;
  EXPECT_EQ(place_of(ranks_of({5, 0, 4, 1, 2}), one), (GroupPlace{5, 5, 5}));
}

TEST(Cluster, prices_collectives_by_size_and_place) {
  const Cluster c = slow_cluster();
  const GroupPlace alone{1, 1, 1}, near{2, 2, 2}, far{2, 1, 1}, both{4, 2, 2};
  const auto seconds = [&](CollectiveKind kind, const GroupPlace& place) {
    return seconds_of(call(kind, 8), place, c);
  };
  for (int kind = 0; kind < collective_kind_count; ++kind)
    EXPECT_EQ(seconds(static_cast<CollectiveKind>(kind), alone), 0);
  // Latencies, then bytes: 1 s each within a machine, 4 s between.
  EXPECT_EQ(seconds(CollectiveKind::all_reduce, near), 2 * 1 + 8);
  EXPECT_EQ(seconds(CollectiveKind::all_reduce, far), 2 * 8 + 8 * 4);
  EXPECT_EQ(seconds(CollectiveKind::all_reduce, both), 6 * 8 + 12 * 4) << "a ring is as slow as its slowest link";
  EXPECT_EQ(seconds(CollectiveKind::reduce_scatter, near), 1 + 4);
  EXPECT_EQ(seconds(CollectiveKind::reduce_scatter, both), 3 * 8 + 6 * 4);
  EXPECT_EQ(seconds(CollectiveKind::all_gather, near), 1 + 8);
  EXPECT_EQ(seconds(CollectiveKind::all_gather, both), 3 * 8 + 24 * 4);
  EXPECT_EQ(seconds(CollectiveKind::broadcast, both), 2 * 8 + 8 * 4);
  EXPECT_EQ(seconds(CollectiveKind::broadcast, {5, 1, 2}), 3 * 8 + 8 * 4);
  EXPECT_EQ(seconds(CollectiveKind::barrier, near), 1);
  EXPECT_EQ(seconds(CollectiveKind::barrier, both), 2 * 8);
  EXPECT_EQ(seconds(CollectiveKind::all_to_all, near), 1 + 4);
  EXPECT_EQ(seconds(CollectiveKind::all_to_all, both), 8 + 4 * 4) << "two of four ranks are on the other machine";
  Cluster slow_inside = c;
  slow_inside.within.latency = 100;
  EXPECT_EQ(seconds_of(call(CollectiveKind::all_to_all, 8), both, slow_inside), 100 + 2);
}

TEST(Simulate, a_lane_continues_while_another_communicates) {
  Steps s;
  s.compute("x", 3).sum("x", 8).compute("y", 20).compute("z", 1, {"x", "y"});
  Cluster c = slow_cluster();
  c.node_overhead = 0.5;
  const RankPlans ranks = on_ranks({&s}, {0, 0});
  const Simulation done = run(ranks, c);
  ASSERT_EQ(done.classes.size(), 1u);
  EXPECT_EQ(done.classes[0].start, (Times{0, 3.5, 3.5, 24}));
  EXPECT_EQ(done.classes[0].end, (Times{3.5, 14, 24, 25.5}));
  EXPECT_EQ(done.seconds, 25.5);
  EXPECT_EQ(done.classes[0].busy[static_cast<std::size_t>(Lane::compute)], 25.5);
  EXPECT_EQ(done.classes[0].busy[static_cast<std::size_t>(Lane::reduce)], 10.5);
  EXPECT_TRUE(done.stuck.empty());

  const Estimate estimate = estimate_step(ranks, c);
  EXPECT_EQ(estimate.seconds, 25.5);
  EXPECT_EQ(estimate.all.communication, 10.5);
  EXPECT_EQ(estimate.all.hidden, 10.5);
  EXPECT_EQ(estimate.exchange.communication, 0);
  const Timeline drawn = estimate_timeline(ranks, c);
  EXPECT_EQ(drawn.events.size(), 8u);
  EXPECT_EQ(range_of(drawn).length(), 25.5);
}

TEST(Simulate, a_collective_waits_for_the_last_rank) {
  Steps fast, slow;
  fast.compute("x", 1).sum("x", 8).compute("y", 1, {"x"});
  slow.compute("x", 5).sum("x", 8).compute("y", 1, {"x"});
  const Simulation done = run(on_ranks({&fast, &slow}, {0, 1}));
  EXPECT_EQ(done.classes[0].start, (Times{0, 1, 15}));
  EXPECT_EQ(done.classes[0].end, (Times{1, 15, 16}));
  EXPECT_EQ(done.classes[1].end, (Times{5, 15, 16}));
  const Estimate estimate = estimate_step(on_ranks({&fast, &slow}, {0, 1}), slow_cluster());
  EXPECT_EQ(estimate.all.communication, (14 + 10) / 2.0) << "of the average rank";
  EXPECT_EQ(estimate.all.exposed, (14 + 10) / 2.0);
}

TEST(Simulate, ranks_of_a_class_are_as_slow_as_their_slowest_group) {
  Steps s;
  s.compute("x", 1).sum("x", 8);
  RankPlans ranks = on_ranks({&s}, {0, 0, 0, 0, 0, 0});
  ranks.groups = {{ranks_of({0, 1}), ranks_of({2, 4}), ranks_of({3, 5})}};
  const Simulation done = run(ranks);
  ASSERT_EQ(done.classes.size(), 1u);
  EXPECT_EQ(done.seconds, 1 + 2 * 8 + 8 * 4);
}

TEST(Simulate, a_transfer_starts_when_both_ranks_have_reached_it) {
  Steps from, to;
  from.compute("x", 2).send("x", 1).compute("y", 1);
  to.compute("z", 7).receive("x", 0).compute("y", 1, {"x"});
  const Simulation near = run(on_ranks({&from, &to}, {0, 1}));
  EXPECT_EQ(near.classes[0].start, (Times{0, 2, 2}));
  EXPECT_EQ(near.classes[0].end, (Times{2, 2 + 1 + 16, 3}));
  EXPECT_EQ(near.classes[1].start, (Times{0, 0, 19}));
  EXPECT_EQ(near.classes[1].end, (Times{7, 19, 20}));

  // Ranks 1 and 2 are on two machines.
  Steps idle;
  idle.compute("x", 1);
  from.plan.collectives[0].peer = 2;
  to.plan.collectives[0].peer = 1;
  const Simulation far = run(on_ranks({&idle, &from, &to}, {0, 1, 2}));
  EXPECT_EQ(far.classes[1].end, (Times{2, 2 + 8 + 16 * 4, 3}));
}

TEST(Simulate, transfers_of_one_node_go_together) {
  Steps a, b;
  a.compute("x", 2).transfer({{"x", 1, true}, {"y", 1, false}});
  b.compute("y", 5).transfer({{"y", 0, true}, {"x", 0, false}});
  const Simulation done = run(on_ranks({&a, &b}, {0, 1}));
  EXPECT_TRUE(done.stuck.empty());
  EXPECT_EQ(done.classes[0].end, (Times{2, 5 + 1 + 16}));
  EXPECT_EQ(done.classes[1].end, (Times{5, 5 + 1 + 16}));
  EXPECT_TRUE(check_ranks(on_ranks({&a, &b}, {0, 1})).empty());
}

// Ranks 1 and 2 run the same plan, but rank 0 sends to rank 2 only after it has the answer of rank 1.
TEST(Simulate, ranks_that_a_peer_serves_one_after_the_other_differ) {
  Steps hub, leaf;
  hub.compute("a", 1).send("a", 1).receive("b", 1).send("a", 2).receive("c", 2);
  leaf.receive("a", 0).compute("b", 1, {"a"}).send("b", 0);
  const RankPlans ranks = on_ranks({&hub, &leaf}, {0, 1, 1});
  ASSERT_EQ(RankClasses(ranks).count(), 3u);
  Cluster c = slow_cluster();
  c.ranks_per_machine = 0;
  const Simulation done = run(ranks, c);
  EXPECT_TRUE(done.stuck.empty());
  EXPECT_EQ(done.classes[1].end, (Times{18, 19, 36}));
  EXPECT_EQ(done.classes[2].end, (Times{53, 54, 71}));

  // Here rank 0 waits for an answer to something it has not sent yet.
  Steps wrong;
  wrong.compute("a", 1).send("a", 1).receive("c", 2).send("a", 2).receive("b", 1);
  EXPECT_EQ(run(on_ranks({&wrong, &leaf}, {0, 1, 1}), c).stuck.size(), 2u);
}

void expect_fault(const RankPlans& ranks, const std::vector<std::string>& parts) {
  const std::vector<PlanFault> faults = check_ranks(ranks);
  ASSERT_EQ(faults.size(), 1u) << (faults.empty() ? "" : faults.back().message);
  for (const std::string& part : parts)
    EXPECT_NE(faults[0].message.find(part), std::string::npos) << "no '" << part << "' in\n" << faults[0].message;
}

TEST(Simulate, two_ranks_that_both_send_first_wait_for_each_other) {
  Steps a, b;
  a.compute("x", 1).send("x", 1).receive("y", 1);
  b.compute("y", 1).send("y", 0).receive("x", 0);
  const RankPlans ranks = on_ranks({&a, &b}, {0, 1});
  const Simulation done = run(ranks);
  ASSERT_EQ(done.stuck.size(), 2u);
  EXPECT_EQ(done.stuck[0].rank, RankId(0));
  EXPECT_EQ(done.stuck[0].node, NodeId(1));
  EXPECT_EQ(done.stuck[0].what, "waits in send of x@0 over 'all' for rank 1");
  EXPECT_EQ(done.stuck[1].what, "waits in send of y@0 over 'all' for rank 0");
  expect_fault(ranks,
               {"none can proceed", "rank 0, node 1: forward move x@0 waits in send of x@0 over 'all' for rank 1",
                "rank 1, node 1: forward move y@0 waits in send of y@0 over 'all' for rank 0"});
}

TEST(Simulate, a_send_without_its_receive) {
  Steps a, b;
  a.compute("x", 1).send("x", 1);
  b.compute("x", 1);
  const RankPlans ranks = on_ranks({&a, &b}, {0, 1});
  const Simulation done = run(ranks);
  ASSERT_EQ(done.stuck.size(), 1u) << "the path ends at a rank that has nothing left to do";
  EXPECT_EQ(done.stuck[0].what, "waits in send of x@0 over 'all' for rank 1");
  expect_fault(ranks, {"rank 1 has no receive for what is sent here", "rank 0, node 1: forward move x@0"});
}

// A model in 8 stages of 2048 ranks; small, so that every kind of damage can be checked.
class Stages : public testing::Test {
 protected:
  static constexpr int count = 8;
  const Layout layout = staged_layout(count, 2048, 4);
  StagePlans stages = [&] {
    PlanOptions options;
    options.micro_batches = 4;
    options.weave = options.delay_weight_gradients = true;
    return make_stages(small_step("[*E][*E]", options, Layout::of_data_and_experts(2048, 4)).plan, layout);
  }();
  // The node of that place and micro-batch.
  static std::size_t find(const Plan& plan, const std::string& place, int micro_batch) {
    for (std::size_t i = 0; i < plan.nodes.size(); ++i)
      if (plan.place_of(plan.nodes[i]).name == place && plan.nodes[i].micro_batch == micro_batch) return i;
    ADD_FAILURE() << "no node at " << place;
    return 0;
  }
  void replan(std::size_t stage) { stages.memories[stage] = plan_memory(stages.plans[stage]); }
};

TEST_F(Stages, of_16384_ranks_are_8_classes_that_run_to_their_end) {
  ASSERT_EQ(stages.ranks.plan_of.size(), 16384u);
  const RankClasses classes(stages.ranks);
  EXPECT_EQ(classes.count(), 8u);
  for (std::size_t c = 0; c < classes.count(); ++c) EXPECT_EQ(classes.ranks_in(c), 2048);
  for (const PlanFault& fault : check_ranks(stages.ranks)) ADD_FAILURE() << fault.message;
  const Cluster cluster;
  const Simulation done = simulate(stages.ranks, classes, &cluster);
  EXPECT_TRUE(done.stuck.empty());
  for (std::size_t stage = 1; stage < count; ++stage)
    for (int m = 0; m < 4; ++m) {
      const std::size_t sent = find(stages.plans[stage - 1], "stage.send", m),
                        received = find(stages.plans[stage], "stage.receive", m);
      EXPECT_EQ(done.classes[stage - 1].end[sent], done.classes[stage].end[received]);
    }
}

TEST_F(Stages, without_one_receive) {
  Plan& plan = stages.plans[3];
  const std::size_t receive = find(plan, "stage.receive", 2);
  plan.nodes.erase(plan.nodes.begin() + static_cast<std::ptrdiff_t>(receive));
  for (Node& node : plan.nodes)  // also removes the read of what was received
    if (node.uses > 0 && plan.value_of(plan.uses_of(node).back().buffer).name == "stage.received" &&
        node.lane == Lane::compute && node.micro_batch == 2)
      --node.uses;
  replan(3);
  expect_fault(stages.ranks, {"a send with match 2 meets a receive with match 3", "send@2", "receive@3"});
}

// Two transfers between the same ranks in different orders: each would receive the data of the other.
TEST_F(Stages, that_receive_in_a_different_order) {
  Plan& plan = stages.plans[3];
  std::swap(
      plan.collectives[static_cast<std::size_t>(plan.nodes[find(plan, "stage.receive", 0)].first_collective)].match,
      plan.collectives[static_cast<std::size_t>(plan.nodes[find(plan, "stage.receive", 1)].first_collective)].match);
  expect_fault(stages.ranks, {"a send with match 0 meets a receive with match 1"});
}

// Stage 3 also sends something back before it receives, but stage 2 receives that only after it has sent.
TEST_F(Stages, that_wait_for_each_other) {
  const auto insert = [&](std::size_t stage, CollectiveKind kind, int peer, std::size_t at) {
    Plan& plan = stages.plans[stage];
    const bool sends = kind == CollectiveKind::send;
    ValueInfo info = plan.values.back();  // like what stages receive
    info.name = "back";
    info.storage = sends ? StorageClass::constant : StorageClass::output;
    const BufferId buffer = plan.add_buffer(plan.add_value(info));
    NodeCollective c;
    c.kind = kind;
    c.group = layout.stages();
    c.peer = peer;
    c.match = MatchId(9);
    (sends ? c.send : c.receive) = buffer;
    const BufferUse use{buffer, sends ? Access::read : Access::write};
    const Node node = plan.make_node(NodeKind::communicate, Phase::forward, Lane::tensor,
                                     plan.add_place(0, "stage", "back"), 0, {&use, 1}, {&c, 1});
    plan.nodes.insert(plan.nodes.begin() + static_cast<std::ptrdiff_t>(at), node);
    replan(stage);
  };
  insert(3, CollectiveKind::send, 2, find(stages.plans[3], "stage.receive", 0));
  insert(2, CollectiveKind::receive, 3, find(stages.plans[2], "stage.send", 0) + 1);
  expect_fault(stages.ranks, {"none can proceed", "rank 6144, node", "waits in send of back over 'pp' for rank 4096",
                              "forward stage.send@0 waits in send of", "over 'pp' for rank 6144"});
}

}  // namespace
}  // namespace weft
