// Ranks that divide each layer: the numbers of one rank up to rounding, and the same bits in every order.
#include <cmath>

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
    {"attention_and_mlp", "*-*-", [](RankCase&) {}},
    {"prediction_tied", "[*-]-/*-/*-", [](RankCase& c) { c.config.tied_embeddings = true; }},
    {"biases", "*-",
     [](RankCase& c) {
       c.config.attention.qkv_bias = c.config.attention.output_bias = c.config.mlp.bias = true;
       c.config.attention.qk_norm = c.config.attention.sinks = true;
     }},
    {"gates", "*-*",
     [](RankCase& c) {
       c.config.attention.output_gate = c.config.attention.qk_norm = true;
       c.config.mlp.activation.kind = ActivationKind::squared_relu;
       c.config.zero_centred_norms = true;
     }},
    {"recurrent", "M-G", [](RankCase& c) { c.config.mamba.groups = 4; }},
    {"recurrent_with_few_groups", "M-G",
     [](RankCase& c) {
       c.config.mamba.groups = 2;
       c.config.mamba.conv_bias = true;
     }},
    {"recurrent_with_one_group", "MM",
     [](RankCase& c) {
       c.config.mamba.groups = 1;
       c.config.mamba.conv_bias = false;
     }},
    {"a_norm_over_all_heads", "M*",
     [](RankCase& c) {
       c.config.mamba.groups = 4;
       c.config.mamba.norm_by_group = false;
     }},
    {"an_indexer_that_learns", "DD",
     [](RankCase& c) {
       c.config.latent_attention = {
           .heads = 4, .q_rank = 6, .kv_rank = 6, .head_dim = 4, .rotary_dim = 2, .value_dim = 4};
       c.config.latent_attention.indexer = {.heads = 2, .dim = 4, .topk = 3, .loss_factor = 0.5};
     }},
    {"latent", "+D",
     [](RankCase& c) {
       c.config.latent_attention = {
           .heads = 4, .q_rank = 6, .kv_rank = 6, .head_dim = 4, .rotary_dim = 2, .value_dim = 4};
       c.config.latent_attention.indexer = {.heads = 2, .dim = 4, .topk = 3};
     }},
    {"latent_with_direct_queries", "+-/+",
     [](RankCase& c) {
       c.config.latent_attention = {.heads = 4, .kv_rank = 6, .head_dim = 4, .rotary_dim = 2, .value_dim = 4};
     }},
    {"a_vocabulary_of_few_words", "*-/*-", [](RankCase& c) { c.config.vocabulary = 5; }},
};

// Two sequences of eight tokens; the head works on several slices.
RankCase one_rank(const Layers& layers) {
  RankCase c = small_case(layers.pattern);
  c.length = 8;
  c.batch = 2;
  c.micro_batches = 4;
  c.logits_slice_bytes = 600;
  layers.change(c);
  return c;
}

class TensorRanks : public testing::TestWithParam<Layers> {};

TEST_P(TensorRanks, agree_with_one_rank_in_double) {
  const RankCase one = one_rank(GetParam());
  const RankRun oracle = run_ranks(one);
  // Four ranks share two heads of keys and values.
  for (const auto& [ranks, tensor] : {std::pair{2, 2}, {4, 4}, {4, 2}})
    for (const bool sequence : {false, true}) {
      RankCase c = one;
      c.ranks = ranks;
      c.tensor_ranks = tensor;
      c.sequence = sequence;
      c.micro_batches = 4 * tensor / ranks;
      c.parallel = true;
      c.delay = sequence;
      expect_near(run_ranks(c), oracle, 1e-9, fmt::format("tp {} of {}, sequence {}", tensor, ranks, sequence));
    }
}

TEST_P(TensorRanks, change_no_bit_by_their_order) {
  RankCase c = one_rank(GetParam());
  c.ranks = 4;
  c.tensor_ranks = 2;
  c.micro_batches = 2;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    c.dtype = dtype;
    c.sequence = dtype == DType::f32;
    const RankRun plain = run_ranks(c);
    for (const bool delay : {false, true})
      for (const bool late : {false, true}) {
        RankCase other = c;
        other.parallel = true;
        other.delay = delay;
        other.overlap_updates = late;
        other.weave = late;
        const RankRun run = run_ranks(other);
        const std::string what = fmt::format("{} delay {} late {}", name_of(dtype), delay, late);
        EXPECT_EQ(run.losses, plain.losses) << what;
        EXPECT_EQ(run.norms, plain.norms) << what;
        EXPECT_TRUE(run.parameters == plain.parameters) << what;
      }
  }
}

TEST_P(TensorRanks, divide_what_they_hold_among_data_ranks) {
  RankCase one = one_rank(GetParam());
  one.sharding = ShardingStrategy::no_shard;
  const RankRun oracle = run_ranks(one);
  using enum ShardingStrategy;
  for (const ShardingStrategy strategy : {optim, optim_grads, optim_grads_params})
    for (const int instances : {1, 2}) {
      RankCase c = one;
      c.ranks = instances == 2 ? 8 : 4;
      c.tensor_ranks = 2;
      c.sequence = strategy != optim;
      c.micro_batches = 8 / c.ranks;
      c.sharding = strategy;
      c.instances = instances;
      c.shard_over_instances = instances == 2 && strategy == optim_grads_params;
      c.parallel = c.overlap_updates = true;
      expect_near(run_ranks(c), oracle, 1e-9, fmt::format("{} in {}", name_of(strategy), instances));
    }
}

INSTANTIATE_TEST_SUITE_P(Layers, TensorRanks, testing::ValuesIn(all_layers),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(TensorRanksEvaluate, the_losses_and_logits_of_one_rank) {
  RankCase c = one_rank(all_layers[std::size(all_layers) - 1]);
  const auto evaluated = [](const RankCase& run) {
    RankRun result;
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
      result.losses = numbers;
      return RankRun{};
    };
    run_ranks(run, on_rank);
    return result.losses;
  };
  const std::vector<double> wanted = evaluated(c);
  ASSERT_EQ(wanted.size(), 1u + (16 + 5) * 5);
  for (const int ranks : {2, 4}) {
    c.ranks = c.tensor_ranks = ranks;
    c.sequence = ranks == 2;
    EXPECT_THAT(evaluated(c), testing::Pointwise(testing::DoubleNear(1e-12), wanted)) << ranks;
  }
}

std::string message_of(RankCase c, const std::function<void(RankCase&)>& change) {
  c.ranks = c.tensor_ranks = 4;
  c.length = 8;
  change(c);
  try {
    ModuleOptions options;
    options.layout = Layout::of({.tp = c.tensor_ranks});
    options.length = c.length;
    options.sequence_parallel = c.sequence;
    build_module(c.config, options);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(TensorRanksErrors, name_both_numbers) {
  const RankCase c = small_case("*-");
  EXPECT_EQ(message_of(c, [](RankCase& r) { r.config.attention.heads = r.config.attention.kv_heads = 6; }),
            "`attention.heads` 6: must be a multiple of `tensor_ranks` 4; use 4 or 8, or fewer tensor ranks");
  EXPECT_EQ(message_of(c,
                       [](RankCase& r) {
                         r.config.attention.heads = 12;
                         r.config.attention.kv_heads = 3;
                       }),
            "`attention.kv_heads` 3: must be a multiple of `tensor_ranks` 4, or divide them: then ranks share heads");
  EXPECT_EQ(message_of(c, [](RankCase& r) { r.config.mlp.ffn = 26; }),
            "`mlp.ffn` 26: must be a multiple of `tensor_ranks` 4; use 24 or 28, or fewer tensor ranks");
  EXPECT_EQ(message_of(c, [](RankCase& r) { r.config.hidden = 18; }),
            "`hidden` 18: must be a multiple of `tensor_ranks` 4; use 16 or 20, or fewer tensor ranks");
  EXPECT_EQ(message_of(c,
                       [](RankCase& r) {
                         r.sequence = true;
                         r.length = 6;
                       }),
            "`length` 6: `sequence_parallel` divides a sequence among `tensor_ranks` 4; use a multiple of it");
}

}  // namespace
}  // namespace weft
