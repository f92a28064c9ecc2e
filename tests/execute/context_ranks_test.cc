// Ranks that divide the tokens of every sample: the numbers of one rank up to rounding, and the same bits in every order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/execute/compared_runs.h"

namespace weft {
namespace {

struct Layers {
  const char* name;
  const char* pattern;
  void (*change)(RankCase& c);
};

void PrintTo(const Layers& layers, std::ostream* out) { *out << layers.name; }

const Layers all_layers[] = {
    {"tokens_alone", "-", [](RankCase& c) { c.config.mlp.bias = true; }},
    {"attention", "*-*",
     [](RankCase& c) {
       c.config.attention.qkv_bias = c.config.attention.output_bias = true;
       c.config.attention.qk_norm = c.config.attention.sinks = true;
     }},
    {"gates_and_windows", "*-*",
     [](RankCase& c) {
       c.config.attention.output_gate = c.config.attention.qk_norm = true;
       c.config.attention.window = 5;
       c.config.zero_centred_norms = true;
     }},
    {"latent", "+-+",
     [](RankCase& c) {
       c.config.latent_attention = {
           .heads = 4, .q_rank = 6, .kv_rank = 6, .head_dim = 4, .rotary_dim = 2, .value_dim = 4};
     }},
    {"latent_with_direct_queries", "+-",
     [](RankCase& c) {
       c.config.latent_attention = {.heads = 4, .kv_rank = 6, .head_dim = 4, .rotary_dim = 2, .value_dim = 4};
     }},
    {"sparse", "D-D",
     [](RankCase& c) {
       c.config.latent_attention = {
           .heads = 4, .q_rank = 6, .kv_rank = 6, .head_dim = 4, .rotary_dim = 2, .value_dim = 4};
       c.config.latent_attention.indexer = {.heads = 2, .dim = 4, .topk = 3};
     }},
    {"experts", "*E*E/*E",
     [](RankCase& c) {
       c.config.experts.shared_ffn = 8;
       c.config.experts.balance.aux_loss = 0.02;
       c.config.experts.balance.sequence_aux_loss = 0.03;
       c.config.experts.balance.z_loss = 0.01;
     }},
    {"recurrent", "M-G", [](RankCase& c) { c.config.mamba.groups = 4; }},
    {"prediction_tied", "[*-]-/*-/*-", [](RankCase& c) { c.config.tied_embeddings = true; }},
    {"packed", "*-M-G/*",
     [](RankCase& c) {
       c.config.mamba.groups = 4;
       c.packing = {.separate = true, .reset_positions = true};
     }},
};

// Two sequences of sixteen tokens.
RankCase one_rank(const Layers& layers) {
  RankCase c = small_case(layers.pattern);
  c.length = 16;
  c.batch = 2;
  c.micro_batches = c.steps = 2;
  layers.change(c);
  return c;
}

class ContextRanksCompute : public testing::TestWithParam<Layers> {};

using enum ContextTransfer;
constexpr ContextTransfer all_transfers[] = {p2p, all_gather, a2a};

// Neighbours exchange heads, and those with the same heads send each other keys.
TEST_P(ContextRanksCompute, the_numbers_of_one_rank_by_both_transfers) {
  const RankCase one = one_rank(GetParam());
  const RankRun oracle = run_ranks(one);
  for (const bool weave : {false, true}) {
    RankCase c = one;
    c.transfer = a2a_p2p;
    c.ranks = c.context_ranks = 4;
    c.head_ranks = 2;
    c.parallel = c.weave = weave;
    c.sharding = weave ? ShardingStrategy::optim_grads_params : ShardingStrategy::no_shard;
    if (!weave) c.recomputation.kind = Recomputation::Kind::uniform;
    expect_near(run_ranks(c), oracle, 1e-9, fmt::format("woven {}", weave));
  }
}

bool attends(const RankCase& c) { return c.config.pattern.find_first_of("*+") != std::string::npos; }

TEST_P(ContextRanksCompute, the_numbers_of_one_rank_in_double) {
  const RankCase one = one_rank(GetParam());
  const RankRun oracle = run_ranks(one);
  for (const ContextTransfer transfer : all_transfers) {
    if (transfer != a2a && !attends(one)) continue;
    // Of the four heads, four ranks share the two of keys and values.
    for (const auto& [ranks, context] : {std::pair{2, 2}, {4, 4}, {4, 2}}) {
      RankCase c = one;
      c.transfer = transfer;
      c.ranks = ranks;
      c.context_ranks = context;
      c.micro_batches = one.micro_batches * context / ranks;
      c.parallel = true;
      c.delay = context == 4;
      expect_near(run_ranks(c), oracle, 1e-9,
                  fmt::format("transfer {} cp {} of {}", static_cast<int>(transfer), context, ranks));
    }
  }
}

TEST_P(ContextRanksCompute, the_numbers_of_one_rank_beside_tensor_ranks) {
  const RankCase one = one_rank(GetParam());
  const RankRun oracle = run_ranks(one);
  for (const ContextTransfer transfer : all_transfers)
    for (const bool sequence : {false, true}) {
      if (transfer != a2a && !attends(one)) continue;
      RankCase c = one;
      c.transfer = transfer;
      c.ranks = 4;
      c.tensor_ranks = c.context_ranks = 2;
      c.sequence = sequence;
      c.parallel = sequence;
      expect_near(run_ranks(c), oracle, 1e-9,
                  fmt::format("transfer {} sequence {}", static_cast<int>(transfer), sequence));
    }
}

TEST_P(ContextRanksCompute, the_same_bits_in_every_order) {
  RankCase c = one_rank(GetParam());
  c.ranks = 4;
  c.context_ranks = 2;
  c.micro_batches = 2;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const ContextTransfer transfer : all_transfers) {
      if (transfer != a2a && !attends(c)) continue;
      c.dtype = dtype;
      c.transfer = transfer;
      const RankRun plain = run_ranks(c);
      for (const bool woven : {false, true}) {
        RankCase other = c;
        other.parallel = true;
        other.delay = true;
        other.weave = other.overlap_updates = woven;
        const RankRun run = run_ranks(other);
        const std::string what =
            fmt::format("{} transfer {} woven {}", name_of(dtype), static_cast<int>(transfer), woven);
        EXPECT_EQ(run.losses, plain.losses) << what;
        EXPECT_EQ(run.norms, plain.norms) << what;
        EXPECT_TRUE(run.parameters == plain.parameters) << what;
      }
    }
}

TEST_P(ContextRanksCompute, the_numbers_of_one_rank_divided_and_computed_again) {
  RankCase one = one_rank(GetParam());
  one.micro_batches = 4;
  const RankRun oracle = run_ranks(one);
  using enum ShardingStrategy;
  for (const ShardingStrategy strategy : {no_shard, optim, optim_grads, optim_grads_params})
    for (const ContextTransfer transfer : all_transfers) {
      if (transfer != a2a && !attends(one)) continue;
      RankCase c = one;
      c.transfer = transfer;
      c.ranks = 4;
      c.context_ranks = 2;
      c.micro_batches = 2;
      c.sharding = strategy;
      c.parallel = true;
      c.weave = strategy == optim_grads || strategy == no_shard;
      c.recomputation.kind = strategy == optim || strategy == no_shard ? Recomputation::Kind::uniform
                             : strategy == optim_grads                 ? Recomputation::Kind::modules
                                                                       : Recomputation::Kind::none;
      c.recomputation.modules = set_of({RecomputeModule::core_attn, RecomputeModule::layernorm,
                                        RecomputeModule::mla_up_proj, RecomputeModule::gdn_norm_out});
      expect_near(run_ranks(c), oracle, 1e-9,
                  fmt::format("{} transfer {}", name_of(strategy), static_cast<int>(transfer)));
    }
}

// Losses and logits of a batch, and logits of some tokens, of tensor and context ranks.
TEST(ContextRanksEvaluate, the_losses_and_logits_of_one_rank) {
  const auto evaluated = [](const RankCase& run) {
    std::vector<double> result;
    std::mutex mutex;
    const auto on_rank = [&](const RankCase& own, World* world) {
      CpuDevice device;
      Session session(device, options_of(own, world));
      session.initialise_parameters(5);
      const MicroBatch batch = batch_of(own, 0, session.options().layout.shard_of(0));
      std::vector<double> numbers{session.evaluator().loss(batch)};
      const std::vector<double> all = session.evaluator().batch_logits(batch),
                                some = session.evaluator().logits(std::span(batch.tokens).first(5));
      numbers.insert(numbers.end(), all.begin(), all.end());
      numbers.insert(numbers.end(), some.begin(), some.end());
      const std::lock_guard lock(mutex);
      if (result.empty()) result = numbers;
      EXPECT_EQ(numbers, result);
      return RankRun{};
    };
    run_ranks(run, on_rank);
    return result;
  };
  RankCase c = one_rank(all_layers[1]);
  c.config.pattern = "*-/*-";
  const std::vector<double> oracle = evaluated(c);
  for (const auto& [tensor, context] : {std::pair{1, 2}, {1, 4}, {2, 2}}) {
    RankCase divided = c;
    divided.tensor_ranks = tensor;
    divided.context_ranks = context;
    divided.ranks = tensor * context;
    divided.transfer = p2p;
    const std::vector<double> numbers = evaluated(divided);
    ASSERT_EQ(numbers.size(), oracle.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) EXPECT_NEAR(numbers[i], oracle[i], 1e-12) << i;
  }
}

TEST(ContextRanksErrors, name_both_numbers) {
  const auto message = [](const RankCase& c) {
    try {
      run_ranks(c);
    } catch (const std::exception& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  RankCase c = one_rank(all_layers[1]);
  c.ranks = c.context_ranks = 4;
  c.length = 12;
  EXPECT_THAT(message(c), testing::AllOf(testing::HasSubstr("`length` 12"), testing::HasSubstr("`context_ranks` 4"),
                                         testing::HasSubstr("8 parts")));
  c.length = 16;
  c.config.attention.heads = c.config.attention.kv_heads = 6;
  EXPECT_THAT(message(c),
              testing::AllOf(testing::HasSubstr("`attention.heads` 6"), testing::HasSubstr("`context_ranks` 4")));
}

INSTANTIATE_TEST_SUITE_P(Layers, ContextRanksCompute, testing::ValuesIn(all_layers),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace weft
