// Parameters, gradients and optimizer state divided over data-parallel ranks: the same results as with whole ones.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "tests/execute/compared_runs.h"

namespace weft {
namespace {

constexpr ShardingStrategy strategies[] = {ShardingStrategy::no_shard, ShardingStrategy::optim,
                                           ShardingStrategy::optim_grads, ShardingStrategy::optim_grads_params};

std::string text_of(const RankCase& c) {
  return fmt::format("{} {}: ranks {} ep {} instances {}{} weave {} delay {} late {} parallel {}", c.config.pattern,
                     name_of(c.sharding), c.ranks, c.expert_ranks, c.instances,
                     c.shard_over_instances ? ", divided" : "", c.weave, c.delay, c.overlap_updates, c.parallel);
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

struct Model {
  const char* pattern;
  bool tied = false;  // one weight for embedding and head
};
class Sharded : public testing::TestWithParam<Model> {};

TEST_P(Sharded, agrees_with_one_rank_in_double) {
  RankCase one = sharded_case(GetParam().pattern);
  one.config.tied_embeddings = GetParam().tied;
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
        expect_near(run_ranks(c), oracle, 1e-9, text_of(c));
      }
}

// Two instances of the optimizer, which hold the same parts, or divide what they hold.
TEST_P(Sharded, agrees_with_one_rank_in_two_instances) {
  RankCase one = sharded_case(GetParam().pattern);
  one.config.tied_embeddings = GetParam().tied;
  one.micro_batches = 8;
  const RankRun oracle = run_ranks(one);
  using enum ShardingStrategy;
  for (const auto& [strategy, divided] : {std::pair{no_shard, false},
                                          {optim, false},
                                          {optim_grads, false},
                                          {optim_grads_params, false},
                                          {optim_grads_params, true}})
    for (const int expert_ranks : {1, 2})
      for (const auto& [weave, delay] : {std::pair{false, false}, {true, false}, {true, true}}) {
        RankCase c = one;
        c.sharding = strategy;
        c.shard_over_instances = divided;
        c.ranks = 4;
        c.instances = 2;
        c.expert_ranks = expert_ranks;
        c.micro_batches = 2;
        c.weave = weave;
        c.delay = delay;
        c.parallel = weave;
        expect_near(run_ranks(c), oracle, 1e-9, text_of(c));
      }
}

INSTANTIATE_TEST_SUITE_P(Patterns, Sharded,
                         testing::Values(Model{"[*E][*-]"}, Model{"M[*E]G-"}, Model{"[+E]/[+E]"},
                                         Model{"[*E][*-]", true}, Model{"[+E]/[+E]", true}),
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
            other.dispatch = !weave;
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

TEST(Sharding, in_instances_has_the_same_bits_in_every_order) {
  using enum ShardingStrategy;
  for (const auto& [ranks, expert_ranks] : {std::pair{4, 2}, {8, 2}})
    for (const auto& [strategy, divided] :
         {std::pair{optim, false}, {optim_grads, false}, {optim_grads_params, false}, {optim_grads_params, true}}) {
      RankCase c = sharded_case("[*E]G-/[*E]");
      c.config.tied_embeddings = true;
      c.dtype = DType::bf16;
      c.bf16_gradients = strategy != optim;
      c.float_gradient_parts = c.bf16_gradients;
      c.ranks = ranks;
      c.instances = 2;
      c.expert_ranks = expert_ranks;
      c.micro_batches = 3;
      c.sharding = strategy;
      c.shard_over_instances = divided;
      c.clip = divided ? 0 : 1;
      const RankRun plain = run_ranks(c);
      for (const auto& [weave, late] : {std::pair{true, false}, {false, true}, {true, true}}) {
        RankCase other = c;
        other.weave = other.delay = weave;
        other.overlap_updates = late;
        other.parallel = true;
        other.gather_by_piece = !late;
        other.two_buffers = late;
        expect_same_bits(run_ranks(other), plain, text_of(other));
      }
    }
}

// A frozen tensor, a bias that follows counts, MTP with tied weights, and more ranks than some tensors have rows: what is
// divided, and what is not, gives the bits of whole parameters where the sums are the same.
TEST(Sharding, of_what_is_not_trained_by_a_gradient_changes_no_bit) {
  RankCase c = sharded_case("[DE]M/[+E]");
  c.config.latent_attention.indexer = {.heads = 2, .dim = 4, .topk = 3};
  c.config.tied_embeddings = true;
  c.config.experts.router.score = RouterSpec::Score::sigmoid;
  c.config.experts.router.choose_first = false;
  c.config.experts.router.normalise = true;
  c.config.experts.expert_bias = true;
  c.config.experts.balance.bias_update_rate = 0.01;
  c.dtype = DType::bf16;
  c.ranks = 8;
  c.expert_ranks = 2;
  c.micro_batches = 1;
  c.clip = 0;
  const RankRun whole = run_ranks(c);
  for (const ShardingStrategy strategy : strategies) {
    c.sharding = strategy;
    expect_same_bits(run_ranks(c), whole, text_of(c));
  }
}

// Sums that travel in bf16 and are kept in float: with one micro-batch nothing is added to them, so they are the same.
TEST(Sharding, keeps_float_sums_of_bf16_gradients) {
  RankCase c = sharded_case("[*E][*-]");
  c.dtype = DType::bf16;
  c.bf16_gradients = true;
  c.ranks = 4;
  c.expert_ranks = 2;
  for (const int micro_batches : {1, 3}) {
    c.micro_batches = micro_batches;
    c.sharding = ShardingStrategy::optim_grads;
    c.float_gradient_parts = false;
    const RankRun narrow = run_ranks(c);
    c.float_gradient_parts = true;
    const RankRun wide = run_ranks(c);
    c.sharding = ShardingStrategy::optim_grads_params;
    expect_same_bits(run_ranks(c), wide, text_of(c));
    if (micro_batches == 1)
      expect_same_bits(wide, narrow, text_of(c));
    else
      EXPECT_NE(wide.losses, narrow.losses);
  }
}

// Makes one element of the embedding's gradient infinite, although the loss is finite.
class Overflows : public CpuDevice {
 public:
  Overflows() : operations_(CpuDevice::operations()) {
    operations_.embedding_gradient = [](Stream& stream, const EmbeddingGradient& arguments) {
      CpuDevice().operations().embedding_gradient(stream, arguments);
      reinterpret_cast<float*>(arguments.dweight.data)[0] = std::numeric_limits<float>::infinity();
    };
  }
  const Operations& operations() const override { return operations_; }

 private:
  Operations operations_;
};

// One rank makes it, another one has it in its part: no rank moves a weight.
TEST(Sharding, a_gradient_that_is_not_finite_stops_the_updates_of_all_ranks) {
  using enum ShardingStrategy;
  for (const auto& [strategy, divided] : {std::pair{no_shard, false},
                                          {optim, false},
                                          {optim_grads, false},
                                          {optim_grads_params, false},
                                          {optim_grads_params, true}})
    for (const bool late : {false, true}) {
      RankCase c = sharded_case("[*E][*-]");
      c.dtype = DType::f32;
      c.ranks = 4;
      c.expert_ranks = 2;
      c.sharding = strategy;
      c.instances = divided ? 2 : 1;
      c.shard_over_instances = divided;
      c.overlap_updates = c.parallel = late;
      LocalCluster(c.ranks).run([&](World& world) {
        std::unique_ptr<CpuDevice> device = std::make_unique<CpuDevice>();
        if (world.rank().value == 3) device = std::make_unique<Overflows>();
        Session session(*device, options_of(c, &world));
        session.initialise_parameters(5);
        const std::string before = weight_digest(session);
        for (int step = 0; step < 2; ++step) {
          std::vector<MicroBatch> batches;
          for (int m = 0; m < c.micro_batches; ++m)
            batches.push_back(batch_of(c, step, session.options().layout.shard_of(m)));
          const StepResult result = session.step(batches, 1e-2, 0.1);
          EXPECT_TRUE(std::isfinite(result.loss)) << text_of(c);
          EXPECT_FALSE(result.finite) << text_of(c) << " rank " << world.rank().value;
        }
        EXPECT_EQ(session.steps_taken(), 0);
        EXPECT_EQ(weight_digest(session), before) << text_of(c);
      });
    }
}

// What is evaluated between steps has the weights of all updates, gathered from their parts.
TEST(Sharding, evaluates_what_whole_parameters_do) {
  const auto losses_of = [](ShardingStrategy strategy, bool late) {
    RankCase c = sharded_case("[*E][*-]");
    c.ranks = 2;
    c.clip = 0;
    c.micro_batches = 1;
    c.sharding = strategy;
    c.overlap_updates = late;
    c.parallel = true;
    std::vector<double> losses;
    LocalCluster(c.ranks).run([&](World& world) {
      CpuDevice device;
      Session session(device, options_of(c, &world));
      session.initialise_parameters(5);
      for (int step = 0; step < 3; ++step) {
        const std::vector<MicroBatch> batches{batch_of(c, step, world.rank().value)};
        session.step(batches, 1e-2, 0.1);
        const double loss = session.evaluator().loss(batch_of(c, 100 + step, world.rank().value));
        if (world.rank().value == 0) losses.push_back(loss);
      }
    });
    return losses;
  };
  const std::vector<double> whole = losses_of(ShardingStrategy::no_shard, false);
  for (const ShardingStrategy strategy : strategies)
    for (const bool late : {false, true}) EXPECT_EQ(losses_of(strategy, late), whole) << name_of(strategy);
}

}  // namespace
}  // namespace weft
