// Parameters, gradients and optimizer state divided over data-parallel ranks: the same results as with whole ones.
#include <cmath>

#include <gtest/gtest.h>

#include "tests/execute/ranks.h"

namespace weft {
namespace {

constexpr ShardingStrategy strategies[] = {ShardingStrategy::no_shard, ShardingStrategy::optim,
                                           ShardingStrategy::optim_grads, ShardingStrategy::optim_grads_params};

std::string text_of(const RankCase& c) {
  return fmt::format("{} {}: ranks {} ep {} weave {} delay {} late {} parallel {}", c.config.pattern,
                     name_of(c.sharding), c.ranks, c.expert_ranks, c.weave, c.delay, c.overlap_updates, c.parallel);
}

RankCase sharded_case(const std::string& pattern) {
  RankCase c = small_case(pattern.c_str());
  c.config.latent_attention = {.heads = 2, .q_rank = 6, .kv_rank = 6, .head_dim = 4, .rotary_dim = 2, .value_dim = 4};
  c.config.experts.shared_ffn = 8;
  return c;
}

void expect_same_bits(const RankRun& a, const RankRun& b, const std::string& what) {
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_EQ(a.norms, b.norms) << what;
  EXPECT_TRUE(a.parameters == b.parameters) << what;
}

void expect_near(const RankRun& a, const RankRun& b, const std::string& what) {
  constexpr double limit = 1e-9;
  ASSERT_EQ(a.losses.size(), b.losses.size()) << what;
  for (std::size_t i = 0; i < a.losses.size(); ++i) EXPECT_NEAR(a.losses[i] / b.losses[i], 1, limit) << what;
  for (std::size_t i = 0; i < a.norms.size(); ++i) EXPECT_NEAR(a.norms[i] / b.norms[i], 1, limit) << what;
  const auto wanted = b.weights();
  ASSERT_EQ(a.parameters.size(), b.parameters.size()) << what;
  for (const auto& [who, values] : a.weights()) {
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(values[i] - wanted.at(who)[i], 2);
      norm += std::pow(values[i], 2);
    }
    EXPECT_LE(std::sqrt(difference), limit * std::sqrt(norm)) << what << ": " << to_text(who);
  }
}

class Sharded : public testing::TestWithParam<std::string> {};

TEST_P(Sharded, agrees_with_one_rank_in_double) {
  RankCase one = sharded_case(GetParam());
  one.config.tied_embeddings = GetParam() == "[*E][*-]";
  one.micro_batches = 8;
  const RankRun oracle = run_ranks(one);
  for (const ShardingStrategy strategy : strategies)
    for (const auto& [ranks, expert_ranks] : {std::pair{2, 1}, {4, 1}, {2, 2}, {4, 2}, {4, 4}})
      for (const auto& [weave, delay] : {std::pair{false, false}, {true, false}, {true, true}}) {
        RankCase c = one;
        c.sharding = strategy;
        c.ranks = ranks;
        c.expert_ranks = expert_ranks;
        c.micro_batches = 8 / ranks;
        c.weave = weave;
        c.delay = delay;
        c.parallel = weave;
        expect_near(run_ranks(c), oracle, text_of(c));
      }
}

INSTANTIATE_TEST_SUITE_P(Patterns, Sharded, testing::Values("[*E][*-]", "M[*E]G-", "[+E]/[+E]"),
                         [](const auto& tested) { return fmt::format("pattern{}", tested.index); });

// Orders and executors change no bit; nor do strategies where they form the same sums.
TEST(Sharding, bits_depend_on_the_sums_alone) {
  for (const char* pattern : {"[*E][*-]", "[+E]/[+E]"})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const int micro_batches : {1, 3}) {
        RankCase c = sharded_case(pattern);
        c.dtype = dtype;
        c.ranks = 4;
        c.expert_ranks = 2;
        c.micro_batches = micro_batches;
        c.clip = dtype == DType::f32 ? 1 : 0;
        std::map<ShardingStrategy, RankRun> plain;
        for (const ShardingStrategy strategy : strategies) {
          c.sharding = strategy;
          plain[strategy] = run_ranks(c);
          for (const auto& [weave, delay, late, parallel] :
               {std::tuple{true, false, false, true}, {true, true, true, true}, {false, true, true, false}}) {
            RankCase other = c;
            other.weave = weave && micro_batches > 1;
            other.delay = delay;
            other.overlap_updates = late;
            other.parallel = parallel;
            other.gather_by_piece = !delay;
            other.two_buffers = late;
            expect_same_bits(run_ranks(other), plain[strategy], text_of(other));
          }
        }
        using enum ShardingStrategy;
        expect_same_bits(plain[optim_grads_params], plain[optim_grads], text_of(c));
        // Sums over micro-batches come before those over ranks, or after them.
        if (micro_batches == 1) expect_same_bits(plain[optim_grads], plain[optim], text_of(c));
        // Without a norm, whose parts are other sums, reducing and scattering is all that differs.
        if (c.clip == 0) expect_same_bits(plain[optim], plain[no_shard], text_of(c));
      }
}

}  // namespace
}  // namespace weft
