// Layers that tensor ranks divide, computed again: the bits of the plain run, with transfers that run again where they must.
#include <gtest/gtest.h>

#include "tests/execute/bitwise_cases.h"

namespace weft {
namespace {

using Kind = Recomputation::Kind;

constexpr RecomputeModules all_modules = (1u << static_cast<unsigned>(recompute_module_count)) - 1;

RankCase case_of(const char* pattern, bool sequence) {
  RankCase c = small_case(pattern);
  c.config.latent_attention = {.heads = 2, .q_rank = 5, .kv_rank = 6, .head_dim = 4, .rotary_dim = 2, .value_dim = 3};
  c.config.latent_attention.indexer = {.heads = 2, .dim = 4, .topk = 2};
  c.config.attention.qk_norm = c.config.attention.output_gate = true;
  c.config.experts.shared_ffn = 8;
  c.config.experts.shared_gate = sequence;
  c.config.experts.balance.aux_loss = c.config.experts.balance.global_aux_loss = 0.01;
  c.config.experts.balance.z_loss = 0.01;
  c.dtype = DType::f32;
  c.micro_batches = 2;
  c.length = 8;
  c.ranks = c.tensor_ranks = 2;
  c.expert_tensor_ranks = sequence ? 1 : 2;
  c.expert_ranks = sequence ? 2 : 1;
  c.sequence = sequence;
  return c;
}

TEST(TensorRecompute, has_the_bits_of_the_plain_run) {
  for (const char* pattern : {"M*-GE", "[+E][D-]/[+E]"})
    for (const bool sequence : {false, true}) {
      RankCase c = case_of(pattern, sequence);
      const std::vector<std::string> plain = lines_of("run", run_ranks(c));
      for (const bool weave : {false, true}) {
        c.weave = c.delay = c.parallel = weave;
        for (const Recomputation& how : {Recomputation{Kind::uniform, 1}, Recomputation{Kind::uniform, 2},
                                         Recomputation{Kind::modules, 1, all_modules}}) {
          c.recomputation = how;
          EXPECT_EQ(lines_of("run", run_ranks(c)), plain) << pattern << " sequence " << sequence << " weave " << weave
                                                          << " kind " << static_cast<int>(how.kind) << " " << how.items;
        }
      }
    }
}

TEST(TensorRecompute, gathers_the_weights_that_it_uses) {
  for (const char* pattern : {"[*E][M-]/[*E]", "G[DE]"}) {
    RankCase c = case_of(pattern, true);
    c.ranks = 4;
    c.sharding = ShardingStrategy::optim_grads_params;
    const std::vector<std::string> plain = lines_of("run", run_ranks(c));
    c.weave = c.delay = c.parallel = true;
    for (const Recomputation& how : {Recomputation{Kind::uniform, 1}, Recomputation{Kind::modules, 1, all_modules}}) {
      c.recomputation = how;
      EXPECT_EQ(lines_of("run", run_ranks(c)), plain) << pattern << " kind " << static_cast<int>(how.kind);
    }
  }
}

}  // namespace
}  // namespace weft
