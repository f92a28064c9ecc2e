// Reordering never changes a number; another layout changes it by rounding only.
#include "tests/train/ranks.h"

#include <cmath>

#include <gtest/gtest.h>

namespace weft {
namespace {

ModelConfig config_of(const std::string& pattern) {
  ModelConfig c;
  c.pattern = pattern;
  c.hidden = 16;
  c.vocabulary = 23;
  c.attention = {.heads = 4, .kv_heads = 2, .head_dim = 4};
  c.mlp.ffn = 24;
  c.experts.experts = 8;
  c.experts.ffn = 12;
  c.experts.router.k = 2;
  c.latent_attention = {.heads = 2, .q_rank = 6, .kv_rank = 6, .head_dim = 4, .rotary_dim = 2, .value_dim = 4};
  c.init_std = 0.2;
  return c;
}

void expect_same_bits(const RankRun& a, const RankRun& b, const std::string& what) {
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_EQ(a.norms, b.norms) << what;
  ASSERT_EQ(a.weights.size(), b.weights.size()) << what;
  for (const auto& [who, values] : a.weights) EXPECT_EQ(values, b.weights.at(who)) << what << ": " << to_text(who);
}

void expect_near(const RankRun& a, const RankRun& b, double limit, const std::string& what) {
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    EXPECT_NEAR(a.losses[i] / b.losses[i], 1, limit) << what;
    EXPECT_NEAR(a.norms[i] / b.norms[i], 1, limit) << what;
  }
  ASSERT_EQ(a.weights.size(), b.weights.size()) << what;
  for (const auto& [who, values] : a.weights) {
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(values[i] - b.weights.at(who)[i], 2);
      norm += std::pow(values[i], 2);
    }
    EXPECT_LE(std::sqrt(difference), limit * std::sqrt(norm)) << what << ": " << to_text(who);
  }
}

class Ranks : public testing::TestWithParam<std::tuple<std::string, int, int, DType>> {};

TEST_P(Ranks, every_order_gives_the_same_bits) {
  RankCase c;
  c.config = config_of(std::get<0>(GetParam()));
  c.ranks = std::get<1>(GetParam());
  c.expert_ranks = std::get<2>(GetParam());
  c.dtype = std::get<3>(GetParam());
  if (c.ranks < c.expert_ranks) GTEST_SKIP() << "an expert group needs as many ranks";
  c.config.experts.shared_ffn = c.ranks == 2 ? 8 : 0;
  c.config.tied_embeddings = c.expert_ranks == 2;
  c.micro_batches = 3;
  const RankRun plain = run_ranks(c);
  for (const bool weave : {false, true})
    for (const bool delay : {false, true})
      for (const bool parallel : {false, true}) {
        RankCase other = c;
        other.weave = weave;
        other.delay = delay;
        other.parallel = parallel;
        if (!weave && !delay && !parallel) continue;
        expect_same_bits(run_ranks(other), plain, fmt::format("weave {} delay {} parallel {}", weave, delay, parallel));
      }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Ranks,
                         testing::Combine(testing::Values("[*E][*E]", "*E-E*", "[*-][*E]-", "[*E]/[*E]/[*E]", "+E+E/-"),
                                          testing::Values(1, 2, 4), testing::Values(1, 2),
                                          testing::Values(DType::f32, DType::bf16)),
                         [](const auto& tested) {
                           return fmt::format("pattern{}_ranks{}_ep{}_{}", std::get<0>(tested.param).size(),
                                              std::get<1>(tested.param), std::get<2>(tested.param),
                                              name_of(std::get<3>(tested.param)));
                         });

class Layouts : public testing::TestWithParam<std::string> {};

TEST_P(Layouts, agree_with_one_rank_in_double) {
  RankCase one;
  one.config = config_of(GetParam());
  one.config.experts.shared_ffn = 8;
  one.micro_batches = 8;
  const RankRun oracle = run_ranks(one);
  for (const auto& [ranks, expert_ranks] : {std::pair{2, 1}, {2, 2}, {4, 1}, {4, 2}, {4, 4}, {8, 4}}) {
    RankCase c = one;
    c.ranks = ranks;
    c.expert_ranks = expert_ranks;
    c.micro_batches = 8 / ranks;
    c.weave = c.parallel = true;
    c.delay = ranks == 4;
    expect_near(run_ranks(c), oracle, 1e-9, fmt::format("ranks {} ep {}", ranks, expert_ranks));
  }
}

INSTANTIATE_TEST_SUITE_P(Patterns, Layouts, testing::Values("[*E]-[*E]", "[*-][*E]/[*E]/[*E]", "[+E][+-]/[+E]"),
                         [](const auto& tested) { return fmt::format("pattern{}", tested.index); });

}  // namespace
}  // namespace weft
