// --grad-reduce-in-bf16: gradients of matrices are those in float, rounded when they are stored.
#include <cmath>

#include <gtest/gtest.h>

#include "tests/execute/parameter_numbers.h"
#include "tests/execute/ranks.h"

namespace weft {
namespace {

ModelConfig every_kind() {
  ModelConfig c;
  c.pattern = "M[*E]GE-";
  c.hidden = 16;
  c.vocabulary = 23;
  c.attention = {.heads = 4, .kv_heads = 2, .head_dim = 4};
  c.attention.qkv_bias = c.attention.qk_norm = c.attention.sinks = true;
  c.mlp.ffn = 24;
  c.mlp.bias = true;
  c.experts.experts = 4;
  c.experts.ffn = 12;
  c.experts.router.k = 2;
  c.experts.bias = true;
  c.mamba = {.heads = 4, .head_dim = 8, .groups = 2, .state = 6, .chunk = 4};
  c.delta_net = {.heads = 4, .key_heads = 2, .head_dim = 8, .key_dim = 6, .chunk = 4};
  c.init_std = 0.2;
  return c;
}

struct Gradients {
  std::map<ParameterIdentity, std::vector<double>> values;
  std::map<ParameterIdentity, DType> dtypes;
  std::int64_t bytes = 0;
};

Gradients gradients_of(bool bf16) {
  RankCase c;
  c.config = every_kind();
  CpuDevice device;
  SessionOptions o;
  o.config = c.config;
  o.precision.compute = DType::bf16;
  o.precision.bf16_gradients = bf16;
  o.batch = c.batch;
  o.length = c.length;
  o.plan.kind = PlanKind::gradients;
  Session session(device, o);
  session.initialise_parameters(5);
  const std::vector<MicroBatch> batches{batch_of(c, 0, 0)};
  session.gradients(batches);
  Gradients made;
  each_numbers(session, Content::gradient, [&](const ParameterPart& part, const std::vector<double>& values) {
    made.values[part.identity] = values;
  });
  const Module& m = session.module();
  for (std::size_t i = 0; i < m.parameters.size(); ++i)
    if (m.gradient_values[i].valid())
      for (const ParameterPart& part : m.parameters[i].parts)
        made.dtypes[part.identity] = m.value(m.gradient_values[i]).dtype;
  made.bytes = session.plan().memory().gradients;
  return made;
}

TEST(Bf16Gradients, are_the_float_ones_rounded) {
  const Gradients exact = gradients_of(false), rounded = gradients_of(true);
  ASSERT_EQ(exact.values.size(), rounded.values.size());
  int narrow = 0, wide = 0;
  for (const auto& [who, values] : exact.values) {
    EXPECT_EQ(exact.dtypes.at(who), DType::f32);
    const bool is_narrow = rounded.dtypes.at(who) == DType::bf16;
    ++(is_narrow ? narrow : wide);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double limit = is_narrow ? std::abs(values[i]) * 0x1p-8 : 0;  // half a place of the last bit, and a little
      ASSERT_LE(std::abs(rounded.values.at(who)[i] - values[i]), limit) << to_text(who) << " " << i;
    }
  }
  EXPECT_GT(narrow, 20);
  EXPECT_GT(wide, 10) << "norms, biases, convolutions, the router";
  EXPECT_LT(rounded.bytes, exact.bytes * 0.8);
}

// Of four micro-batches on one rank, or of one on each of four. A store rounds by 2^-9 of what is there, which is of the
// size of the gradient; four of them, and one after the sum over ranks.
TEST(Bf16Gradients, have_the_norm_of_the_float_ones_on_every_layout) {
  RankCase c;
  c.config = every_kind();
  c.dtype = DType::bf16;
  c.micro_batches = 4;
  c.steps = 1;
  const RankRun exact = run_ranks(c);
  c.bf16_gradients = true;
  for (const int ranks : {1, 2, 4}) {
    RankCase other = c;
    other.ranks = ranks;
    other.expert_ranks = ranks == 4 ? 2 : ranks;
    other.micro_batches = 4 / ranks;
    other.weave = other.parallel = other.overlap_updates = ranks > 1;
    const RankRun run = run_ranks(other);
    EXPECT_NEAR(run.losses[0], exact.losses[0], 0x1p-8 * exact.losses[0]) << ranks << " ranks";
    EXPECT_NEAR(run.norms[0], exact.norms[0], 5 * 0x1p-9 * exact.norms[0]) << ranks << " ranks";
    EXPECT_NE(run.norms[0], exact.norms[0]) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace weft
