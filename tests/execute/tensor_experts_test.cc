// Experts on ranks that divide layers: routed by the tokens of each rank, spread over ranks, and divided themselves.
#include <gtest/gtest.h>

#include "tests/execute/compared_runs.h"

namespace weft {
namespace {

struct ExpertRanks {
  int ranks, tensor, expert_tensor, expert;
};

void PrintTo(const ExpertRanks& r, std::ostream* out) {
  *out << fmt::format("{} ranks, tp {}, etp {}, ep {}", r.ranks, r.tensor, r.expert_tensor, r.expert);
}

// Everything that an `E` can have, but what depends on the number of a rank's tokens (its capacity).
RankCase one_rank(const char* pattern) {
  RankCase c = small_case(pattern);
  c.length = 8;
  c.batch = 2;
  c.micro_batches = 4;
  c.config.vocabulary = 997;  // words without ties
  c.config.experts.shared_ffn = 8;
  c.config.experts.router_bias = true;
  c.config.experts.balance = {.aux_loss = 0.02, .sequence_aux_loss = 0.03, .global_aux_loss = 0.05, .z_loss = 0.01};
  return c;
}

class TensorExperts : public testing::TestWithParam<ExpertRanks> {
 protected:
  RankCase spread(RankCase c) const {
    const ExpertRanks& r = GetParam();
    c.ranks = r.ranks;
    c.tensor_ranks = r.tensor;
    c.expert_tensor_ranks = r.expert_tensor;
    c.expert_ranks = r.expert;
    c.micro_batches = c.micro_batches * r.tensor / r.ranks;
    return c;
  }
  int shards() const { return GetParam().ranks / GetParam().tensor; }
};

TEST_P(TensorExperts, agree_with_one_rank_in_double) {
  RankCase one = one_rank("[*E]E/[*E]");
  one.block = shards();
  const RankRun oracle = run_ranks(one);
  for (const bool sequence : {false, true}) {
    RankCase c = spread(one);
    c.block = 1;
    c.sequence = sequence;
    c.parallel = true;
    c.weave = c.delay = sequence && shards() < 4;
    c.sharding = sequence ? ShardingStrategy::optim_grads_params : ShardingStrategy::no_shard;
    expect_near(run_ranks(c), oracle, 1e-9, sequence ? "tokens divided" : "tokens whole");
  }
}

TEST_P(TensorExperts, with_biases_gates_and_latent_tokens) {
  for (const bool latent : {false, true}) {
    RankCase one = one_rank("E-E");
    ExpertsSpec& e = one.config.experts;
    if (latent) {
      e.latent = 8;
      e.shared_gate = true;
    } else {
      e.shared_ffn = 0;
      e.bias = true;
      e.router.score = RouterSpec::Score::sigmoid;
      e.router.choose_first = false;
      e.router.normalise = true;
      e.expert_bias = true;
      e.balance.bias_update_rate = 0.01;
    }
    one.block = shards();
    const RankRun oracle = run_ranks(one);
    for (const bool sequence : {false, true}) {
      RankCase c = spread(one);
      c.block = 1;
      c.sequence = sequence;
      expect_near(run_ranks(c), oracle, 1e-9, fmt::format("latent {} sequence {}", latent, sequence));
    }
  }
}

TEST_P(TensorExperts, change_no_bit_by_their_order) {
  RankCase c = spread(one_rank("[*E][*E]-"));
  c.dtype = DType::bf16;
  c.micro_batches = 3;
  c.sequence = GetParam().expert_tensor > 1;
  const RankRun plain = run_ranks(c);
  for (const bool weave : {false, true})
    for (const bool delay : {false, true}) {
      RankCase other = c;
      other.parallel = true;
      other.weave = weave;
      other.delay = delay;
      other.overlap_updates = weave;
      other.dispatch = !weave;
      const RankRun run = run_ranks(other);
      const std::string what = fmt::format("weave {} delay {}", weave, delay);
      EXPECT_EQ(run.losses, plain.losses) << what;
      EXPECT_EQ(run.norms, plain.norms) << what;
      EXPECT_TRUE(run.parameters == plain.parameters) << what;
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, TensorExperts,
                         testing::Values(ExpertRanks{2, 2, 1, 1}, ExpertRanks{2, 2, 2, 1}, ExpertRanks{2, 2, 1, 2},
                                         ExpertRanks{4, 2, 2, 2}, ExpertRanks{4, 4, 1, 4}, ExpertRanks{4, 2, 4, 1},
                                         ExpertRanks{2, 1, 2, 1}),
                         [](const auto& tested) {
                           const ExpertRanks& r = tested.param;
                           return fmt::format("tp{}_etp{}_ep{}_of_{}", r.tensor, r.expert_tensor, r.expert, r.ranks);
                         });

}  // namespace
}  // namespace weft
