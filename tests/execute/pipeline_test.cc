// Pipelines compute what one rank computes, and no order changes a bit.
#include <gtest/gtest.h>

#include "tests/execute/compared_runs.h"
#include "tests/execute/queued_cpu_device.h"

namespace weft {
namespace {

RankCase staged(const char* pattern, int stages, int data, int experts) {
  RankCase c = small_case(pattern);
  c.config.latent_attention = {.heads = 2, .q_rank = 6, .kv_rank = 6, .head_dim = 4, .rotary_dim = 2, .value_dim = 4};
  c.config.latent_attention.indexer = {.heads = 2, .dim = 4, .topk = 3, .loss_factor = 0.5};
  c.stages = stages;
  c.ranks = stages * data;
  c.expert_ranks = experts;
  c.micro_batches = 8 / data;
  return c;
}

RankRun oracle_of(const RankCase& c) {
  RankCase one = c;
  one.stages = one.ranks = one.expert_ranks = one.virtual_stages = one.instances = 1;
  one.shard_over_instances = false;
  one.order = OrderKind::automatic;
  one.micro_batches = c.micro_batches * c.ranks / c.stages;
  one.block = c.ranks / c.stages;
  one.weave = one.delay = one.parallel = one.overlap_updates = false;
  one.sharding = ShardingStrategy::no_shard;
  return run_ranks(one);
}

void expect_right(const RankCase& c, const std::string& what) { expect_near(run_ranks(c), oracle_of(c), 1e-9, what); }

TEST(Pipeline, agrees_with_one_rank_in_double) {
  for (const char* pattern : {"*|-", "[*E]|[*-]|[*E]|[*E]", "M|*|-|G", "+||D|", "|[*E]M|*|"})
    for (const auto& [stages, data, experts] : {std::tuple{2, 1, 1}, {2, 2, 1}, {2, 2, 2}, {4, 1, 1}, {4, 2, 2}}) {
      if (std::string_view(pattern) == "*|-" && stages == 4) continue;
      RankCase c = staged(pattern, stages, data, experts);
      c.parallel = data == 2;
      expect_right(c, fmt::format("{} pp {} dp {} ep {}", pattern, stages, data, experts));
    }
}

// A chunk without layers of the main part has the final norm, MTP and the heads; both ends have the embedding.
TEST(Pipeline, with_mtp_and_tied_weights_agrees_with_one_rank) {
  for (const char* pattern : {"[*E]|[*E]|[*E]|/[*E]", "*|-/[*E]/[*E]", "*|-"})
    for (const bool tied : {false, true})
      for (const OrderKind order : {OrderKind::automatic, OrderKind::zero_bubble})
        for (const ShardingStrategy sharding : {ShardingStrategy::no_shard, ShardingStrategy::optim_grads_params}) {
          if (order == OrderKind::zero_bubble && pattern[0] == '[') continue;
          RankCase c = staged(pattern, 2, 2, pattern[1] == '*' ? 2 : 1);
          c.config.tied_embeddings = tied;
          c.parallel = true;
          c.order = order;
          c.sharding = sharding;
          expect_right(c, fmt::format("{} tied {} {} {}", pattern, tied, name_of(order), name_of(sharding)));
        }
}

TEST(Pipeline, woven_delayed_and_divided_agrees_with_one_rank) {
  using enum ShardingStrategy;
  for (const char* pattern : {"[*E]|[*E]|[*-]|[*E]", "[*E][*E]", "[*E]|-/[*E]"})
    for (const ShardingStrategy sharding : {no_shard, optim, optim_grads, optim_grads_params})
      for (const OrderKind order : {OrderKind::automatic, OrderKind::zero_bubble}) {
        if (order == OrderKind::zero_bubble && std::string_view(pattern).size() > 12) continue;
        RankCase c = staged(pattern, 2, 2, 2);
        c.sharding = sharding;
        c.weave = c.parallel = true;
        c.order = order;
        c.delay = sharding != optim;
        c.overlap_updates = sharding == optim_grads;
        expect_right(c, fmt::format("{} {} {}", pattern, name_of(sharding), name_of(order)));
      }
}

TEST(Pipeline, with_instances_of_the_optimizer_agrees_with_one_rank) {
  for (const bool over_instances : {false, true}) {
    RankCase c = staged("[*E]|-/[*E]", 2, 4, 2);
    c.config.tied_embeddings = true;
    c.sharding = ShardingStrategy::optim_grads_params;
    c.instances = 2;
    c.shard_over_instances = over_instances;
    c.parallel = true;
    expect_right(c, fmt::format("over instances {}", over_instances));
  }
}

// What balances experts depends on all layers and stages: losses of routers are summed over them.
TEST(Pipeline, balances_experts_as_one_rank_does) {
  RankCase c = staged("E|*E|E|E", 2, 2, 2);
  c.config.experts.balance.aux_loss = 0.02;
  c.config.experts.balance.sequence_aux_loss = 0.03;
  c.config.experts.balance.global_aux_loss = 0.05;
  c.config.experts.balance.z_loss = 0.01;
  c.config.experts.router.score = RouterSpec::Score::sigmoid;
  c.config.experts.router.choose_first = false;
  c.config.experts.router.normalise = true;
  c.config.experts.expert_bias = true;
  c.config.experts.balance.bias_update_rate = 0.01;
  c.config.vocabulary = 997;
  for (const bool weave : {false, true}) {
    c.weave = c.parallel = weave;
    expect_right(c, fmt::format("weave {}", weave));
  }
}

TEST(Pipeline, whose_micro_batches_are_fewer_than_its_stages_agrees_with_one_rank) {
  for (const int micro_batches : {1, 2, 3})
    for (const OrderKind order : {OrderKind::one_f_one_b, OrderKind::zero_bubble})
      for (const bool weave : {false, true}) {
        RankCase c = staged("*|-|*|-", 4, 1, 1);
        c.micro_batches = micro_batches;
        c.order = order;
        c.weave = weave;
        c.parallel = true;
        expect_right(c, fmt::format("{} micro-batches {} weave {}", micro_batches, name_of(order), weave));
      }
}

TEST(Pipeline, evaluates_as_one_rank_does) {
  for (const char* pattern : {"*|-|*|-", "*|-/*", "+E|D"}) {
    RankCase c = staged(pattern, 2, 2, 1);
    c.config.tied_embeddings = true;
    c.config.experts.balance.aux_loss = 0.1;
    const MicroBatch batch = batch_of(c, 0, 0);
    const std::vector<std::int32_t> prompt(batch.tokens.begin(), batch.tokens.begin() + 3);
    const auto evaluated = [&](const RankCase& own, World* world, std::vector<double>& logits) {
      CpuDevice device;
      Session session(device, options_of(own, world));
      session.initialise_parameters(3);
      logits = session.evaluator().logits(prompt);
      const EvaluationLosses losses = session.evaluator().losses(batch);
      std::vector<double> all{losses.loss};
      all.insert(all.end(), losses.mtp_losses.begin(), losses.mtp_losses.end());
      return all;
    };
    RankCase one = c;
    one.stages = one.ranks = 1;
    std::vector<double> wanted_logits;
    const std::vector<double> wanted = evaluated(one, nullptr, wanted_logits);
    LocalOptions local;
    local.timeout = 20;
    LocalCluster(c.ranks, local).run([&](World& world) {
      std::vector<double> logits;
      const std::vector<double> got = evaluated(c, &world, logits);
      ASSERT_EQ(got.size(), wanted.size());
      for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-9) << pattern;
      ASSERT_EQ(logits.size(), wanted_logits.size());
      for (std::size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(logits[i], wanted_logits[i], 1e-9) << pattern;
    });
  }
}

void expect_same_bits(const RankRun& a, const RankRun& b, const std::string& what) {
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_EQ(a.norms, b.norms) << what;
  const auto wanted = b.weights();
  ASSERT_EQ(a.parameters.size(), b.parameters.size()) << what;
  for (const auto& [who, values] : a.weights()) EXPECT_EQ(values, wanted.at(who)) << what << ": " << to_text(who);
}

TEST(PipelineOrders, change_no_bit) {
  for (const char* pattern : {"[*E]|[*E]", "[*E]|-/[*E]"})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      RankCase c = staged(pattern, 2, 2, 2);
      c.dtype = dtype;
      c.config.tied_embeddings = dtype == DType::bf16;
      const RankRun plain = run_ranks(c);
      for (const OrderKind order : {OrderKind::one_f_one_b, OrderKind::zero_bubble})
        for (const bool weave : {false, true})
          for (const bool parallel : {false, true}) {
            RankCase other = c;
            other.order = order;
            other.weave = weave;
            other.delay = weave && parallel;
            other.parallel = parallel;
            other.overlap_updates = weave != parallel;
            expect_same_bits(run_ranks(other), plain,
                             fmt::format("{} {} weave {} parallel {}", pattern, name_of(order), weave, parallel));
          }
    }
}

// The same model on the same number of stages, in other segments: but for the norm, which is summed stage by stage,
// contributions are the same numbers.
TEST(PipelineOrders, of_interleaved_segments_change_no_bit) {
  RankCase c = staged("*|-|*|-", 2, 1, 1);
  c.clip = 0;
  c.dtype = DType::f32;
  const RankRun interleaved = run_ranks(c);
  for (const char* pattern : {"*-|*-", "*-*|-"})
    for (const OrderKind order : {OrderKind::one_f_one_b, OrderKind::zero_bubble}) {
      RankCase other = c;
      other.config.pattern = pattern;
      other.order = order;
      other.parallel = true;
      expect_same_bits(run_ranks(other), interleaved, fmt::format("{} {}", pattern, name_of(order)));
    }
}

TEST(PipelineOrders, that_compute_again_change_no_bit) {
  for (const char* pattern : {"[*E]|[*E]|[*-]|[*E]", "[*E]M|M-/[*E]"})
    for (const bool weave : {false, true}) {
      RankCase c = staged(pattern, 2, 2, 2);
      c.dtype = DType::f32;
      c.weave = c.parallel = weave;
      RankCase again = c;
      again.recomputation.kind = Recomputation::Kind::uniform;
      expect_same_bits(run_ranks(again), run_ranks(c), fmt::format("{} weave {}", pattern, weave));
    }
}

TEST(PipelineOrders, on_a_device_that_queues_its_work_change_no_bit) {
  for (const char* pattern : {"[*E]|[*-]", "*|-|*|-"}) {
    RankCase c = staged(pattern, 2, 2, pattern[0] == '[' ? 2 : 1);
    c.dtype = DType::f32;
    const RankRun plain = run_ranks(c);
    for (const bool parallel : {false, true}) {
      c.parallel = parallel;
      c.weave = parallel;
      const RankRun queued = run_ranks(c, [](const RankCase& own, World* world) {
        QueuedCpuDevice device;
        return run_rank(own, world, device);
      });
      expect_same_bits(queued, plain, fmt::format("{} parallel {}", pattern, parallel));
    }
  }
}

}  // namespace
}  // namespace weft
