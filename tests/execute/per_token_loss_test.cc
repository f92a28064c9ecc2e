// --calculate-per-token-loss: every token of a step that counts weighs the same, whatever micro-batch and rank it is in.
#include <gtest/gtest.h>

#include "tests/execute/compared_runs.h"

namespace weft {
namespace {

using enum ShardingStrategy;

constexpr int samples = 8;  // of a step

RankCase uneven_case(const char* pattern) {
  RankCase c = small_case(pattern);
  c.micro_batches = samples;
  c.uneven_labels = true;
  return c;
}

// All samples of a step as one micro-batch.
MicroBatch together(const RankCase& c, int step) {
  MicroBatch all = batch_of(c, step, 0);
  all.batch = samples;
  for (int sample = 1; sample < samples; ++sample) {
    const MicroBatch b = batch_of(c, step, sample);
    all.tokens.insert(all.tokens.end(), b.tokens.begin(), b.tokens.end());
    all.labels.insert(all.labels.end(), b.labels.begin(), b.labels.end());
  }
  return all;
}

RankRun run_in_one_micro_batch(const RankCase& c) {
  SessionOptions o = options_of(c, nullptr);
  o.batch = samples;
  o.plan.micro_batches = 1;
  CpuDevice device;
  Session session(device, o);
  session.initialise_parameters(5);
  RankRun run;
  for (int step = 0; step < c.steps; ++step) {
    const MicroBatch all = together(c, step);
    const StepResult r = session.step(std::span(&all, 1), 1e-2, 0.1);
    run.losses.push_back(r.loss);
    run.norms.push_back(*r.gradient_norm);
  }
  session.parameters().each(Content::weight, [&](const ParameterPart& part, const HostTensor& tensor) {
    ASSERT_TRUE(run.parameters.add(part, tensor));
  });
  return run;
}

TEST(PerTokenLoss, is_the_mean_over_all_tokens_of_a_step_in_every_layout) {
  struct Way {
    int ranks, expert_ranks;
    ShardingStrategy strategy;
    bool weave = false;
    int instances = 1;
  };
  for (const char* pattern : {"[*E][*-]", "M-"}) {
    RankCase one = uneven_case(pattern);
    const RankRun oracle = run_in_one_micro_batch(one);
    EXPECT_GT(std::abs(run_ranks(one).losses[0] / oracle.losses[0] - 1), 1e-6) << "micro-batches weigh the same";
    one.per_token_loss = true;
    expect_near(run_ranks(one), oracle, 1e-9, pattern);
    for (const Way& way :
         {Way{2, 1, no_shard}, Way{4, 2, no_shard, true}, Way{4, 2, optim}, Way{4, 1, optim_grads, true},
          Way{4, 4, optim_grads_params, true}, Way{4, 1, optim_grads_params, false, 2}}) {
      RankCase c = one;
      c.ranks = way.ranks;
      c.expert_ranks = *pattern == '[' ? way.expert_ranks : 1;
      c.sharding = way.strategy;
      c.instances = way.instances;
      c.weave = c.delay = c.parallel = way.weave;
      c.micro_batches = samples / way.ranks;
      expect_near(run_ranks(c), oracle, 1e-9, fmt::format("{} {} {}", pattern, way.ranks, name_of(way.strategy)));
    }
  }
}

// As in Megatron, a depth's mean over a micro-batch weighs as much as the labels that count there in the main part.
TEST(PerTokenLoss, of_further_tokens_weighs_micro_batches_as_the_main_loss_does) {
  RankCase c = uneven_case("*-/*-");
  c.per_token_loss = true;
  CpuDevice device;
  Session session(device, options_of(c, nullptr));
  session.initialise_parameters(5);
  double labels = 0, loss = 0, further = 0;
  std::vector<MicroBatch> batches;
  for (int sample = 0; sample < samples; ++sample) {
    batches.push_back(batch_of(c, 0, sample));
    const EvaluationLosses of_sample = session.evaluator().losses(batches.back());
    EXPECT_EQ(of_sample.weight, static_cast<double>(c.length - sample % c.length));
    labels += of_sample.weight;
    loss += of_sample.weight * of_sample.loss;
    further += of_sample.weight * of_sample.mtp_losses[0];
  }
  const StepResult result = session.step(batches, 1e-2, 0.1);
  EXPECT_NEAR(result.loss, loss / labels, 1e-12);
  ASSERT_EQ(result.mtp_losses.size(), 1u);
  EXPECT_NEAR(result.mtp_losses[0], further / labels, 1e-12);
}

TEST(PerTokenLoss, of_what_is_evaluated_is_the_mean_over_the_tokens_of_all_ranks) {
  RankCase c = uneven_case("*-");
  c.per_token_loss = true;
  c.micro_batches = 2;
  double labels = 0, loss = 0;
  {
    CpuDevice device;
    Session session(device, options_of(c, nullptr));
    session.initialise_parameters(5);
    for (const int sample : {0, 1, 2, 3}) {
      const EvaluationLosses own = session.evaluator().losses(batch_of(c, 7, sample));
      labels += own.weight;
      loss += own.weight * own.loss;
    }
  }
  c.ranks = 4;
  LocalCluster(c.ranks).run([&](World& world) {
    CpuDevice device;
    Session session(device, options_of(c, &world));
    session.initialise_parameters(5);
    const EvaluationLosses all = session.evaluator().losses(batch_of(c, 7, world.rank().value));
    EXPECT_EQ(all.weight, labels);
    EXPECT_NEAR(all.loss, loss / labels, 1e-12);
  });
}

TEST(PerTokenLoss, of_no_tokens_is_zero) {
  RankCase c = small_case("*-");
  c.per_token_loss = true;
  CpuDevice device;
  Session session(device, options_of(c, nullptr));
  session.initialise_parameters(5);
  std::vector<MicroBatch> batches{batch_of(c, 0, 0), batch_of(c, 0, 1)};
  for (MicroBatch& b : batches) std::fill(b.labels.begin(), b.labels.end(), -1);
  const StepResult result = session.step(batches, 1e-2, 0.1);
  EXPECT_EQ(result.loss, 0);
  EXPECT_EQ(*result.gradient_norm, 0);
  EXPECT_TRUE(result.finite);
}

}  // namespace
}  // namespace weft
