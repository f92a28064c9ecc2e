// What is computed again has the bits of what was kept: losses, norms and weights of recomputed runs equal those of plain ones.
#include <gtest/gtest.h>

#include "tests/execute/bitwise_cases.h"

namespace weft {
namespace {

using Kind = Recomputation::Kind;

std::vector<std::string> lines(const RankCase& c) { return lines_of("run", run_ranks(c)); }

RankCase case_of(const char* pattern) {
  RankCase c = small_case(pattern);
  c.config.latent_attention = {.heads = 2, .q_rank = 5, .kv_rank = 6, .head_dim = 4, .rotary_dim = 2, .value_dim = 3};
  c.config.latent_attention.indexer = {.heads = 2, .dim = 4, .topk = 2};
  c.config.attention.qk_norm = c.config.attention.output_gate = true;
  c.config.experts.shared_ffn = 8;
  c.config.experts.balance.aux_loss = c.config.experts.balance.global_aux_loss = 0.01;
  c.config.experts.balance.z_loss = 0.01;
  c.dtype = DType::f32;
  c.micro_batches = 3;
  return c;
}

// Every kind of layer, MTP, groups and flat patterns.
const std::vector<const char*> patterns = {"M*-GE",     "[*E][M-]G",  "[+E][D-]E", "*E-E*/[*E]/[*E]",
                                           "[GE]|[*E]", "ME*E/ME/ME", "-*"};

TEST(Recompute, the_bits_are_those_of_the_plain_run) {
  for (const char* pattern : patterns)
    for (const auto& [weave, delay, dispatch, parallel] : {std::tuple{false, false, false, false},
                                                           {true, false, false, true},
                                                           {true, true, false, false},
                                                           {false, true, true, true}}) {
      RankCase c = case_of(pattern);
      const std::vector<std::string> plain = lines(c);
      c.weave = weave, c.delay = delay, c.dispatch = dispatch, c.parallel = parallel;
      for (const Recomputation& how : {Recomputation{Kind::uniform, 1},
                                       {Kind::uniform, 2},
                                       {Kind::uniform, 9},
                                       {Kind::block, 1},
                                       {Kind::block, 3}}) {
        c.recomputation = how;
        EXPECT_EQ(lines(c), plain) << pattern << " kind " << static_cast<int>(how.kind) << " items " << how.items
                                   << " weave " << weave << " delay " << delay;
      }
    }
}

TEST(Recompute, ranks_that_exchange_tokens_exchange_them_again) {
  for (const char* pattern : {"[*E][ME]E", "*E-E/[*E]", "E[*-]G"})
    for (const bool weave : {false, true}) {
      RankCase c = case_of(pattern);
      c.ranks = c.expert_ranks = 2;
      const std::vector<std::string> plain = lines(c);
      c.weave = c.parallel = weave;
      c.dispatch = !weave;
      for (const Recomputation& how : {Recomputation{Kind::uniform, 1}, {Kind::uniform, 2}, {Kind::block, 2}}) {
        c.recomputation = how;
        EXPECT_EQ(lines(c), plain) << pattern << " items " << how.items << " weave " << weave;
      }
    }
}

TEST(Recompute, gathers_the_weights_that_it_uses) {
  using enum ShardingStrategy;
  for (const ShardingStrategy strategy : {optim, optim_grads, optim_grads_params})
    for (const bool weave : {false, true}) {
      RankCase c = case_of("[*E][M-]E/[*E]");
      c.ranks = 4;
      c.expert_ranks = 2;
      c.sharding = strategy;
      const std::vector<std::string> plain = lines(c);
      c.weave = c.delay = c.parallel = weave;
      for (const Recomputation& how : {Recomputation{Kind::uniform, 1}, {Kind::uniform, 2}, {Kind::block, 2}}) {
        c.recomputation = how;
        EXPECT_EQ(lines(c), plain) << name_of(strategy) << " items " << how.items << " weave " << weave;
      }
    }
}

}  // namespace
}  // namespace weft
