// Overlap of experts and sharding at the sizes of Megatron's tests (scenarios A2 and A3): three steps of four ranks that
// hold different experts. Every loss and every final weight has the bits of the plain order.
#include <array>

#include "tests/execute/compared_runs.h"

namespace weft {
namespace {

using enum ShardingStrategy;

// hidden 512, 8 heads, ffn 512, 8 experts, bf16 with routers in float, 32 tokens, vocabulary 128; latent attention and
// Mamba-2 have the defaults of Megatron's flags.
RankCase scenario(const std::string& pattern, std::int64_t shared_ffn) {
  RankCase c;
  c.config.pattern = pattern;
  c.config.hidden = 512;
  c.config.vocabulary = 128;
  c.config.attention = {.heads = 8, .kv_heads = 8, .head_dim = 64};
  c.config.latent_attention = {
      .heads = 8, .q_rank = 0, .kv_rank = 32, .head_dim = 128, .rotary_dim = 64, .value_dim = 128};
  c.config.mamba = {.heads = 16, .head_dim = 64, .groups = 8, .state = 128, .chunk = 32};
  c.config.mlp.ffn = c.config.experts.ffn = 512;
  c.config.experts.experts = 8;
  c.config.experts.router.k = 2;
  c.config.experts.shared_ffn = shared_ffn;
  c.dtype = DType::bf16;
  c.ranks = c.expert_ranks = 4;
  c.micro_batches = 3;
  c.length = 32;
  c.steps = 3;
  return c;
}

// Three steps of SGD with a learning rate of 0.01 and no norm.
void choose_optimizer(RankCase& c) {
  c.optimizer.kind = OptimizerKind::sgd;
  c.clip = 0;
}

struct Order {
  const char* name;
  bool weave = false, delay = false, dispatch = false, late = false;
};

RankRun run(RankCase c, ShardingStrategy strategy, const Order& order) {
  choose_optimizer(c);
  c.sharding = strategy;
  c.weave = order.weave;
  c.delay = order.delay;
  c.dispatch = order.dispatch;
  c.overlap_updates = order.late;
  c.parallel = true;
  return run_ranks(c);
}

void expect_same_bits(const RankRun& a, const RankRun& b, const std::string& what) {
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_TRUE(a.parameters == b.parameters) << what;
}

struct Scenario {
  const char* pattern;
  std::int64_t shared_ffn;
};
void PrintTo(const Scenario& s, std::ostream* out) { *out << s.pattern << " shared " << s.shared_ffn; }
std::string name_of_scenario(const testing::TestParamInfo<Scenario>& s) { return std::to_string(s.index); }

class HybridOverlap : public testing::TestWithParam<Scenario> {};

TEST_P(HybridOverlap, has_the_bits_of_the_plain_order_with_every_strategy) {
  const RankCase c = scenario(GetParam().pattern, GetParam().shared_ffn);
  std::map<ShardingStrategy, RankRun> plain;
  for (const ShardingStrategy strategy : {no_shard, optim, optim_grads, optim_grads_params}) {
    plain[strategy] = run(c, strategy, {"plain"});
    ASSERT_EQ(plain[strategy].losses.size(), 3u);
    for (const Order& order :
         {Order{.name = "woven", .weave = true},
          Order{.name = "woven, delayed, late updates", .weave = true, .delay = true, .late = true}})
      expect_same_bits(run(c, strategy, order), plain[strategy],
                       fmt::format("{} {} {}", GetParam().pattern, name_of(strategy), order.name));
  }
  // Without a norm these form the same sums: over micro-batches and then over ranks, or the other way around.
  expect_same_bits(plain[optim], plain[no_shard], "optim and no_shard");
  expect_same_bits(plain[optim_grads_params], plain[optim_grads], "optim_grads_params and optim_grads");
}

INSTANTIATE_TEST_SUITE_P(OverlapAtSize, HybridOverlap,
                         testing::Values(Scenario{"[*E][*E]", 0}, Scenario{"[*E][*E]", 512}, Scenario{"[M*E][M*E]", 0},
                                         Scenario{"[M*E][M*E]", 512}, Scenario{"[+E][+E]", 0},
                                         Scenario{"[+E][+E]", 512}),
                         name_of_scenario);

class TransformerOverlap : public testing::TestWithParam<Scenario> {};

TEST_P(TransformerOverlap, of_dispatch_and_weight_gradients_has_the_bits_of_the_plain_order) {
  const RankCase c = scenario(GetParam().pattern, GetParam().shared_ffn);
  for (const ShardingStrategy strategy : {no_shard, optim_grads, optim_grads_params}) {
    const RankRun plain = run(c, strategy, {"plain"});
    for (const Order& order :
         {Order{.name = "delayed", .delay = true}, Order{.name = "woven, delayed", .weave = true, .delay = true},
          Order{.name = "dispatch first", .dispatch = true},
          Order{.name = "dispatch first, delayed, late updates", .delay = true, .dispatch = true, .late = true}})
      expect_same_bits(run(c, strategy, order), plain,
                       fmt::format("{} {} {}", GetParam().pattern, name_of(strategy), order.name));
  }
}

INSTANTIATE_TEST_SUITE_P(OverlapAtSize, TransformerOverlap, testing::Values(Scenario{"+E+E", 0}, Scenario{"+E+E", 512}),
                         name_of_scenario);

}  // namespace
}  // namespace weft
