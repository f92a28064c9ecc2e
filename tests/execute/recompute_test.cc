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

// The weights that widen what latent experts return need it again, so their unit dispatches and combines again.
TEST(Recompute, latent_experts_return_their_rows_again) {
  for (const char* pattern : {"[*E][ME]", "[*E]/[*E]"})
    for (const auto& [weave, delay] : {std::pair{false, false}, {true, false}, {true, true}}) {
      RankCase c = case_of(pattern);
      c.config.experts.latent = 6;
      c.ranks = c.expert_ranks = 2;
      const std::vector<std::string> plain = lines(c);
      c.weave = c.parallel = weave;
      c.delay = delay;
      c.dispatch = !weave;
      for (const Recomputation& how : {Recomputation{Kind::uniform, 1}, {Kind::uniform, 2}, {Kind::block, 1}}) {
        c.recomputation = how;
        EXPECT_EQ(lines(c), plain) << pattern << " items " << how.items << " weave " << weave << " delay " << delay;
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

Recomputation only(RecomputeModules modules) { return {Kind::modules, 1, modules}; }
constexpr RecomputeModules all_modules = (1u << static_cast<unsigned>(recompute_module_count)) - 1;

TEST(RecomputeModules, each_alone_and_all_together_have_the_bits_of_the_plain_run) {
  for (const char* pattern : {"M*-GE", "[+E][D-]/[+E]"})
    for (const bool rich : {false, true}) {
      RankCase c = case_of(pattern);
      if (!rich) {
        c.config.attention.qk_norm = c.config.attention.output_gate = false;
        c.config.attention.sinks = true;
        c.config.attention.qkv_bias = c.config.mlp.bias = true;
        c.config.experts.shared_gate = true;
        c.config.experts.latent = 6;
        // Sparse attention chooses keys by the latent of its queries.
        if (c.config.pattern.find('D') == std::string::npos) c.config.latent_attention.q_rank = 0;
        c.config.latent_attention.indexer.loss_factor = 0.1;
      }
      const std::vector<std::string> plain = lines(c);
      for (int module = 0; module <= recompute_module_count; ++module) {
        const bool all = module == recompute_module_count;
        c.recomputation = only(all ? all_modules : set_of({static_cast<RecomputeModule>(module)}));
        for (const bool weave : {false, true}) {
          c.weave = c.delay = c.parallel = weave;
          EXPECT_EQ(lines(c), plain) << pattern << " module " << module << " rich " << rich << " weave " << weave;
        }
      }
    }
}

TEST(RecomputeModules, documents_stay_apart) {
  for (const char* pattern : {"M*-GE", "[+E][D-]"}) {
    RankCase c = case_of(pattern);
    c.config.vocabulary = 5;  // many ends
    const std::vector<std::string> together = lines(c);
    c.packing = {.separate = true, .reset_positions = true};
    const std::vector<std::string> plain = lines(c);
    EXPECT_NE(plain, together);
    for (const Recomputation& how : {only(all_modules), Recomputation{Kind::uniform, 1}}) {
      c.recomputation = how;
      EXPECT_EQ(lines(c), plain) << pattern << " kind " << static_cast<int>(how.kind);
    }
  }
}

TEST(RecomputeModules, queries_that_turn_in_place_are_projected_again) {
  RankCase c = case_of("[+-][+E]");
  c.config.latent_attention.q_rank = 0;
  const std::vector<std::string> plain = lines(c);
  for (const Recomputation& how :
       {only(set_of({RecomputeModule::mla_up_proj})), only(all_modules), Recomputation{Kind::uniform, 1}}) {
    c.recomputation = how;
    EXPECT_EQ(lines(c), plain);
  }
}

// Megatron's memory variants of its test of overlap.
TEST(RecomputeModules, latent_attention_on_four_expert_ranks) {
  using enum RecomputeModule;
  for (const ShardingStrategy strategy : {ShardingStrategy::optim_grads, ShardingStrategy::optim_grads_params})
    for (const std::int64_t shared : {0, 8}) {
      RankCase c = case_of("[+-][+E]");
      c.ranks = c.expert_ranks = 4;
      c.micro_batches = 2;
      c.config.experts.shared_ffn = shared;
      c.dtype = DType::bf16;
      c.sharding = strategy;
      const std::vector<std::string> plain = lines(c);
      for (const RecomputeModules modules :
           {set_of({core_attn, mla_up_proj, layernorm, moe_act, mlp, shared_experts}), all_modules})
        for (const bool weave : {false, true}) {
          c.recomputation = only(modules);
          c.weave = c.delay = c.parallel = weave;
          c.dispatch = !weave;
          EXPECT_EQ(lines(c), plain) << name_of(strategy) << " shared " << shared << " weave " << weave;
        }
    }
}

// A norm that was computed again too early once made gradients explode from the second step on.
TEST(RecomputeModules, a_woven_norm_is_that_of_the_plain_run_in_later_steps) {
  RankCase c = case_of("[*E]");
  c.ranks = c.expert_ranks = 2;
  c.steps = 6;
  c.dtype = DType::bf16;
  const RankRun plain = run_ranks(c);
  c.weave = c.parallel = true;
  c.recomputation = only(set_of({RecomputeModule::layernorm}));
  const RankRun woven = run_ranks(c);
  ASSERT_EQ(woven.norms.size(), 6u);
  EXPECT_EQ(woven.norms, plain.norms);
  EXPECT_EQ(woven.losses, plain.losses);
}

// What the plan says is what steps use.
TEST(RecomputeModules, memory_falls_as_planned) {
  using enum RecomputeModule;
  const auto measure = [](const Recomputation& how) {
    RankCase c = case_of("M*-GE[*E][*-]/[+E]");
    c.batch = 4;
    c.length = 32;
    c.recomputation = how;
    CpuDevice device;
    Session session(device, options_of(c, nullptr));
    session.initialise_parameters(5);
    std::vector<MicroBatch> batches;
    for (int m = 0; m < c.micro_batches; ++m) batches.push_back(batch_of(c, 0, m));
    session.step(batches, 1e-2, 0.1);
    EXPECT_EQ(session.plan().arena_high_water(), session.plan().memory().arena);
    return session.plan().memory().activations;
  };
  const std::int64_t kept = measure({});
  std::vector<std::int64_t> of_modules;
  for (const RecomputeModule module :
       {core_attn, moe_act, layernorm, mla_up_proj, mlp, moe, shared_experts, gdn_norm_out}) {
    of_modules.push_back(measure(only(set_of({module}))));
    EXPECT_LT(of_modules.back(), kept) << name_of(module);
  }
  const std::int64_t all = measure(only(all_modules));
  EXPECT_LT(all, *std::min_element(of_modules.begin(), of_modules.end()));
  EXPECT_LT(measure({Kind::uniform, 1}), all);
}

}  // namespace
}  // namespace weft
