// Another layout changes a number by rounding only. (Orders change none: bitwise_test.cc.)
#include <cmath>

#include <gtest/gtest.h>

#include "tests/execute/compared_runs.h"

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
  c.mamba = {.heads = 4, .head_dim = 8, .groups = 2, .state = 6, .chunk = 4};
  c.delta_net = {.heads = 4, .key_heads = 2, .head_dim = 8, .key_dim = 6, .chunk = 4};
  c.latent_attention.indexer = {.heads = 2, .dim = 4, .topk = 3, .loss_factor = 0.5};
  c.init_std = 0.2;
  return c;
}

void expect_same_bits(const RankRun& a, const RankRun& b, const std::string& what) {
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_EQ(a.norms, b.norms) << what;
  const auto wanted = b.weights();
  ASSERT_EQ(a.parameters.size(), b.parameters.size()) << what;
  for (const auto& [who, values] : a.weights()) EXPECT_EQ(values, wanted.at(who)) << what << ": " << to_text(who);
}

TEST(Orders, of_latent_attention_and_of_prediction_change_no_bit) {
  for (const char* pattern : {"[*E]/[*E]/[*E]", "+E+E/-", "[DE]D-"})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      RankCase c;
      c.config = config_of(pattern);
      c.config.tied_embeddings = dtype == DType::f32;
      c.dtype = dtype;
      c.ranks = c.expert_ranks = 2;
      c.micro_batches = 3;
      const RankRun plain = run_ranks(c);
      for (const bool weave : {false, true})
        for (const bool delay : {false, true})
          for (const bool parallel : {false, true}) {
            RankCase other = c;
            other.weave = weave;
            other.delay = delay;
            other.parallel = parallel;
            other.early = weave && delay;
            expect_same_bits(run_ranks(other), plain,
                             fmt::format("{} weave {} delay {} parallel {}", pattern, weave, delay, parallel));
          }
    }
}

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

INSTANTIATE_TEST_SUITE_P(Patterns, Layouts,
                         testing::Values("[*E]-[*E]", "[*-][*E]/[*E]/[*E]", "[+E][+-]/[+E]", "MEM*EME", "M[M*]-[GE]",
                                         "[+E][DE]"),
                         [](const auto& tested) { return fmt::format("pattern{}", tested.index); });

// Everything that balances experts at once, over ep x edp; the oracle runs blocks of as many micro-batches as there are
// data shards.
ModelConfig balanced(bool sigmoid) {
  ModelConfig c = config_of("[*E]E");
  c.experts.balance.aux_loss = 0.02;
  c.experts.balance.sequence_aux_loss = 0.03;
  c.experts.balance.global_aux_loss = 0.05;
  c.experts.balance.z_loss = 0.01;
  if (sigmoid) {
    c.experts.router.score = RouterSpec::Score::sigmoid;
    c.experts.router.choose_first = false;
    c.experts.router.normalise = true;
    c.experts.expert_bias = true;
    c.experts.balance.bias_update_rate = 0.01;
  }
  return c;
}

TEST(SpreadExperts, with_router_losses_capacity_and_bias_agree_with_one_rank) {
  for (const auto& [expert_ranks, replicas] :
       {std::pair{1, 1}, {1, 2}, {1, 4}, {2, 1}, {2, 2}, {2, 4}, {4, 1}, {4, 2}, {4, 4}}) {
    const int ranks = expert_ranks * replicas;
    RankCase c;
    c.config = balanced(expert_ranks != 2);
    c.config.experts.balance.capacity_factor = replicas == 2 ? 0 : 0.8;
    c.config.experts.balance.drop_policy =
        expert_ranks == 1 ? DropChoices::Policy::position : DropChoices::Policy::probabilities;
    c.config.experts.balance.pad_to_capacity = expert_ranks == 4 && replicas != 2;
    // Two sequences that begin with the same token have a tie there, which rounding would break: take many words.
    c.config.vocabulary = 997;
    c.batch = 2;
    c.micro_batches = 16;
    c.block = ranks;
    const RankRun oracle = run_ranks(c);
    c.ranks = ranks;
    c.expert_ranks = expert_ranks;
    c.micro_batches = 16 / ranks;
    c.block = 1;
    c.weave = c.delay = c.parallel = ranks > 1;
    expect_near(run_ranks(c), oracle, 1e-9, fmt::format("ep {} edp {}", expert_ranks, replicas));
  }
}

TEST(SpreadExperts, an_expert_without_tokens_is_legal) {
  RankCase c;
  c.config = config_of("[*E][*E]");
  c.config.experts.experts = 16;  // of six tokens with two choices each at least four experts get none
  c.micro_batches = 4;
  const RankRun oracle = run_ranks(c);
  for (int ranks : {2, 4}) {
    RankCase spread = c;
    spread.ranks = spread.expert_ranks = ranks;
    spread.micro_batches = 4 / ranks;
    spread.weave = spread.parallel = true;
    expect_near(run_ranks(spread), oracle, 1e-9, fmt::format("ep {}", ranks));
  }
}

TEST(SpreadExperts, router_losses_and_early_release_change_no_bit_with_the_order) {
  for (const bool sigmoid : {false, true}) {
    RankCase c;
    c.config = balanced(sigmoid);
    c.config.experts.shared_ffn = 8;
    c.dtype = DType::f32;
    c.ranks = 4;
    c.expert_ranks = 2;
    c.batch = 2;
    c.micro_batches = 4;
    const RankRun plain = run_ranks(c);
    for (const bool delay : {false, true})
      for (const bool early : {false, true}) {
        RankCase other = c;
        other.weave = other.parallel = true;
        other.delay = delay;
        other.early = early;
        expect_same_bits(run_ranks(other), plain, fmt::format("sigmoid {} delay {} early {}", sigmoid, delay, early));
      }
  }
}

TEST(SpreadExperts, the_bias_follows_the_load) {
  RankCase c;
  c.config = balanced(true);
  c.ranks = 2;
  c.steps = 3;
  const RankRun run = run_ranks(c);
  int moved = 0;
  for (const auto& [who, values] : run.weights()) {
    if (who.role != Role::expert_bias) continue;
    for (double value : values) {
      EXPECT_NEAR(value / 0.01, std::round(value / 0.01), 1e-9) << "steps of the rate";
      EXPECT_LE(std::abs(value), 0.03 + 1e-12);
      moved += value != 0;
    }
  }
  EXPECT_GT(moved, 0);
}

}  // namespace
}  // namespace weft
