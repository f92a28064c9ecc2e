// Whatever breaks on one rank ends the run on all of them, soon, with a message that names the rank and the node.
#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/execute/bitwise_cases.h"
#include "weft/base/error.h"
#include "weft/plan/build.h"

namespace weft {
namespace {

using Kind = InjectedFault::Kind;

RankCase case_of(bool weave) {
  RankCase c;
  for (const NamedCase& known : bitwise_cases(4))
    if (known.run.expert_ranks == 2 && known.run.sharding == ShardingStrategy::no_shard && known.run.stages == 1 &&
        known.run.tensor_ranks == 1)
      c = known.run;  // the last: "[*-][*E]-", sigmoid, shared
  c.weave = c.delay = weave;
  c.parallel = true;
  c.steps = 2;
  c.timeout = 5;
  return c;
}

// The plan that the ranks of such a run share.
Plan plan_of(const RankCase& c) {
  ModuleOptions options;
  options.precision.compute = c.dtype;
  options.batch = c.batch;
  options.length = c.length;
  options.layout = Layout::of_data_and_experts(c.ranks, c.expert_ranks);
  options.sharding = c.sharding;
  StepOptions step;
  step.config = c.config;
  step.module = options;
  step.optimizer.clip = c.clip;
  step.plan.micro_batches = c.micro_batches;
  step.plan.weave = c.weave;
  step.plan.delay_weight_gradients = c.delay;
  return plan_step(step).plan;
}

struct Ended {
  std::string message;
  double seconds = 0;
};
Ended run_with(const RankCase& c) {
  const auto begin = std::chrono::steady_clock::now();
  Ended ended;
  try {
    run_ranks(c);
  } catch (const std::exception& e) {
    ended.message = e.what();
  }
  ended.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return ended;
}

void expect_names(const Ended& ended, const std::string& part, const InjectedFault& fault) {
  EXPECT_NE(ended.message.find(part), std::string::npos)
      << "node " << fault.node << " on rank " << fault.rank << " without '" << part << "': " << ended.message;
}

TEST(Faults, that_can_hit_nothing_are_refused) {
  RankCase c = case_of(false);
  const Plan plan = plan_of(c);
  const auto refusal = [&](Kind kind, std::int64_t node, std::int64_t rank) -> std::string {
    c.fault = {kind, node, rank};
    try {
      run_ranks(c);
    } catch (const UserError& e) {
      return e.what();
    } catch (const RunError&) {
      return "";
    }
    return "the run went well";
  };
  const auto nodes = std::ssize(plan.nodes);
  EXPECT_EQ(refusal(Kind::error, nodes - 1, 3), "");
  EXPECT_EQ(refusal(Kind::error, nodes, 3),
            fmt::format("`fault`: there is no node {}; `weft plan` lists 0 to {}", nodes, nodes - 1));
  EXPECT_EQ(refusal(Kind::error, 0, 4), "`fault`: there is no rank 4; ranks are 0 to 3");
  const auto exchange =
      std::find_if(plan.nodes.begin(), plan.nodes.end(), [](const Node& node) { return node.lane == Lane::exchange; });
  EXPECT_EQ(refusal(Kind::counts, exchange - plan.nodes.begin(), 1), "");
  EXPECT_EQ(refusal(Kind::counts, 0, 1),
            fmt::format("`fault`: node 0, {}, exchanges no tokens, so it has no counts to get wrong; node {}, {}, does",
                        plan.name_of(plan.nodes[0]), exchange - plan.nodes.begin(), plan.name_of(*exchange)));
  EXPECT_THAT(refusal(Kind::counts, nodes - 1, 1), ::testing::HasSubstr("exchanges no tokens"));
}

TEST(Faults, forty_errors_in_any_node_on_any_rank) {
  for (int i = 0; i < 40; ++i) {
    RankCase c = case_of(i % 2 == 0);
    const Plan plan = plan_of(c);
    c.fault.kind = Kind::error;
    const auto draw = [&](std::uint64_t what, std::size_t below) {
      return static_cast<std::int64_t>(random_below(what, static_cast<std::uint64_t>(i), below));
    };
    c.fault.node = draw(1, plan.nodes.size());
    c.fault.rank = draw(2, static_cast<std::size_t>(c.ranks));
    const Ended ended = run_with(c);
    expect_names(ended, fmt::format("rank {}", c.fault.rank), c.fault);
    expect_names(
        ended,
        fmt::format("node {}, {}", c.fault.node, plan.name_of(plan.nodes[static_cast<std::size_t>(c.fault.node)])),
        c.fault);
    expect_names(ended, "injected fault", c.fault);
    EXPECT_LT(ended.seconds, 4);
  }
}

// Ranks that gather, reduce and update parts of parameters.
TEST(Faults, twenty_errors_where_parameters_are_divided) {
  RankCase c = case_of(true);
  c.sharding = ShardingStrategy::optim_grads_params;
  const Plan plan = plan_of(c);
  std::vector<std::vector<std::int64_t>> nodes(4);  // gathers, reductions, additions, updates
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const Node& node = plan.nodes[i];
    const int kind = node.lane == Lane::gather && node.kind == NodeKind::communicate ? 0
                     : node.kind == NodeKind::accumulate                             ? 2
                     : node.lane == Lane::reduce                                     ? 1
                     : node.phase == Phase::update                                   ? 3
                                                                                     : -1;
    if (kind >= 0) nodes[static_cast<std::size_t>(kind)].push_back(static_cast<std::int64_t>(i));
  }
  for (std::uint64_t i = 0; i < 20; ++i) {
    const std::vector<std::int64_t>& some = nodes[i % 4];
    ASSERT_FALSE(some.empty()) << i % 4;
    const bool stalls = i >= 16;
    c.timeout = stalls ? 0.4 : 5;
    c.fault = {stalls ? Kind::stall : Kind::error, some[random_below(3, i, some.size())],
               static_cast<std::int64_t>(i) % c.ranks};
    const Ended ended = run_with(c);
    expect_names(ended, fmt::format("rank {}", c.fault.rank), c.fault);
    expect_names(ended, plan.name_of(plan.nodes[static_cast<std::size_t>(c.fault.node)]), c.fault);
    EXPECT_LT(ended.seconds, 4);
  }
}

TEST(Faults, six_stalls_are_noticed_and_located) {
  for (int i = 0; i < 6; ++i) {
    RankCase c = case_of(true);
    c.timeout = 0.4;
    const Plan plan = plan_of(c);
    c.fault.kind = Kind::stall;
    c.fault.node = static_cast<std::int64_t>(plan.nodes.size()) / 7 * i + 3;
    c.fault.rank = i % c.ranks;
    const Ended ended = run_with(c);
    // The report tells what every rank is doing: the stalled one is at its node.
    expect_names(ended, fmt::format("rank {}", c.fault.rank), c.fault);
    expect_names(ended, plan.name_of(plan.nodes[static_cast<std::size_t>(c.fault.node)]), c.fault);
    EXPECT_LT(ended.seconds, 4);
  }
}

TEST(Faults, six_exchanges_with_wrong_counts) {
  RankCase c = case_of(true);
  const Plan plan = plan_of(c);
  std::vector<std::int64_t> exchanges;
  for (std::size_t i = 0; i < plan.nodes.size(); ++i)
    if (plan.nodes[i].lane == Lane::exchange && plan.nodes[i].collectives > 0)
      exchanges.push_back(static_cast<std::int64_t>(i));
  ASSERT_GE(exchanges.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) {
    c.fault.kind = Kind::counts;
    c.fault.node = exchanges[i * exchanges.size() / 6];
    c.fault.rank = static_cast<std::int64_t>(i) % c.ranks;
    const Ended ended = run_with(c);
    expect_names(ended, fmt::format("rank {}", c.fault.rank), c.fault);
    expect_names(ended, plan.name_of(plan.nodes[static_cast<std::size_t>(c.fault.node)]), c.fault);
    EXPECT_LT(ended.seconds, 4);
  }
}

TEST(Faults, on_one_rank_name_the_node_too) {
  RankCase c = case_of(false);
  c.ranks = c.expert_ranks = 1;
  c.fault = {Kind::error, 7, 0};
  const Plan plan = plan_of(c);
  expect_names(run_with(c), fmt::format("node 7, {}: injected fault", plan.name_of(plan.nodes[7])), c.fault);
}

TEST(Faults, are_asked_for_in_words) {
  const InjectedFault fault = parse_fault("stall@37:2");
  EXPECT_EQ(fault.kind, Kind::stall);
  EXPECT_EQ(fault.node, 37);
  EXPECT_EQ(fault.rank, 2);
  EXPECT_EQ(fault.step, 1);
  const InjectedFault later = parse_fault("error@3:0:12");
  EXPECT_EQ(later.rank, 0);
  EXPECT_EQ(later.step, 12);
  for (const char* wrong : {"", "stall", "stall@3", "boom@3:1", "error@x:1", "error@3:", "error@-1:0", "error@3:0:0",
                            "error@3:0:", "error@3:0:1:2"}) {
    try {
      parse_fault(wrong);
      FAIL() << wrong << " is not refused";
    } catch (const UserError& e) {
      EXPECT_EQ(std::string(e.what()),
                fmt::format("`fault` '{}': not KIND@NODE:RANK[:STEP], as in error@37:1; KIND is error, "
                            "stall, kill or counts",
                            wrong));
    }
  }
}

}  // namespace
}  // namespace weft
