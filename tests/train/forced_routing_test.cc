// --moe-router-force-load-balancing: fixed random numbers choose the experts; the router is still computed and learns.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "tests/execute/ranks.h"
#include "weft/train/library_bytes.h"

namespace weft {
namespace {

ModelConfig forced(bool sigmoid) {
  ModelConfig c;
  c.pattern = "E*E";
  c.hidden = 16;
  c.vocabulary = 997;
  c.attention = {.heads = 4, .kv_heads = 2, .head_dim = 4};
  c.experts.experts = 8;
  c.experts.ffn = 12;
  c.experts.router.k = 2;
  c.experts.balance.aux_loss = c.experts.balance.z_loss = 0.01;
  c.experts.balance.forced = true;
  c.init_std = 0.2;
  if (sigmoid) {
    c.experts.router.score = RouterSpec::Score::sigmoid;
    c.experts.router.choose_first = false;
    c.experts.router.normalise = true;
  }
  return c;
}

// Which experts the tokens of the first micro-batch go to in one layer: i32 [T, k], as doubles.
std::vector<double> choices_of(Session& session, const std::string& layer) {
  measure_library_bytes(session);  // feeds zeros
  const Plan& plan = session.plan().plan();
  ValueId indices;
  for (std::size_t v = 0; v < plan.values.size(); ++v)
    if (plan.values[v].name == layer + ".indices") indices = ValueId(static_cast<std::int64_t>(v));
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    session.plan().run_node(NodeId(static_cast<std::int64_t>(i)), session.stream(), true);
    if (plan.name_of(plan.nodes[i]) == "forward " + layer + ".route@0") break;
  }
  return session.plan().read(session.stream(), indices, 0);
}

SessionOptions options_of(const ModelConfig& config) {
  SessionOptions o;
  o.config = config;
  o.precision.compute = DType::f32;
  o.batch = 2;
  o.length = 128;
  return o;
}

TEST(ForcedRouting, is_even_and_does_not_look_at_the_model) {
  CpuDevice device;
  for (const bool sigmoid : {false, true}) {
    Session a(device, options_of(forced(sigmoid))), b(device, options_of(forced(sigmoid)));
    a.initialise_parameters(1);
    b.initialise_parameters(2);
    const std::vector<double> first = choices_of(a, "main.0E"), second = choices_of(a, "main.2E");
    EXPECT_EQ(choices_of(b, "main.0E"), first);
    EXPECT_NE(first, second) << "every layer has its own";
    std::vector<int> counts(8);
    for (double expert : first) ++counts[static_cast<std::size_t>(expert)];
    // 256 tokens x 2 over 8 experts: 64 each on average, with a standard deviation of 7.
    EXPECT_LE(*std::max_element(counts.begin(), counts.end()), 64 + 4 * 7);
    EXPECT_GE(*std::min_element(counts.begin(), counts.end()), 64 - 4 * 7);
  }
}

TEST(ForcedRouting, still_trains_the_router) {
  RankCase c;
  c.config = forced(false);
  c.batch = 2;
  const RankRun none = run_ranks([&] {
    RankCase start = c;
    start.steps = 0;
    return start;
  }());
  const RankRun trained = run_ranks(c);
  const auto nothing = none.weights();
  for (const auto& [who, values] : trained.weights()) {
    if (who.role != Role::router) continue;
    EXPECT_NE(values, nothing.at(who));
  }
}

TEST(ForcedRouting, is_the_same_on_every_layout) {
  for (const bool sigmoid : {false, true}) {
    RankCase c;
    c.config = forced(sigmoid);
    c.batch = 2;
    c.micro_batches = 8;
    const RankRun oracle = run_ranks(c);
    for (const auto& [ranks, expert_ranks] : {std::pair{2, 1}, {2, 2}, {4, 2}}) {
      RankCase other = c;
      other.ranks = ranks;
      other.expert_ranks = expert_ranks;
      other.micro_batches = 8 / ranks;
      other.weave = other.parallel = true;
      const RankRun run = run_ranks(other);
      for (std::size_t i = 0; i < run.losses.size(); ++i)
        EXPECT_NEAR(run.losses[i], oracle.losses[i], 1e-9 * std::abs(oracle.losses[i])) << ranks << " " << i;
      const auto wanted = oracle.weights();
      for (const auto& [who, values] : run.weights())
        for (std::size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(values[i], wanted.at(who)[i], 1e-9) << to_text(who);
    }
  }
}

}  // namespace
}  // namespace weft
