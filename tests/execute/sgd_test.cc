// Runs of --optimizer sgd: the formula, step by step, and the same numbers in every layout, order and type.
#include <cmath>

#include "tests/execute/compared_runs.h"
#include "tests/execute/parameter_numbers.h"

namespace weft {
namespace {

RankCase sgd_case(const char* pattern, double momentum = 0.9) {
  RankCase c = small_case(pattern);
  c.optimizer.kind = OptimizerKind::sgd;
  c.optimizer.momentum = momentum;
  return c;
}

using Numbers = std::map<ParameterIdentity, std::vector<double>>;
Numbers numbers_in(Session& session, Content content) {
  Numbers numbers;
  each_numbers(session, content,
               [&](const ParameterPart& part, const std::vector<double>& values) { numbers[part.identity] = values; });
  return numbers;
}

struct Choice {
  double momentum, clip;
  bool decay_all;
};
class SgdSteps : public testing::TestWithParam<Choice> {};

// torch.optim.SGD, written out: decay is added to the clipped gradient, and both go into the momentum.
TEST_P(SgdSteps, are_those_of_the_formula) {
  const auto& [momentum, clip, decay_all] = GetParam();
  RankCase c = sgd_case("M[*E]-", momentum);
  c.clip = clip;
  c.optimizer.decay_all = decay_all;
  CpuDevice device;
  Session session(device, options_of(c, nullptr));
  session.initialise_parameters(5);
  std::map<ParameterIdentity, bool> decays;
  for (const ParameterTensor& tensor : session.module().parameters)
    for (const ParameterPart& part : tensor.parts) decays[part.identity] = part.shape.dims() > 1 || decay_all;
  Numbers weights = numbers_in(session, Content::weight), kept;
  for (int step = 0; step < 5; ++step) {
    const double rate = 0.05 / (1 + step), decay = 0.1 * (1 + step);
    const StepResult result = session.step(std::vector{batch_of(c, step, 0), batch_of(c, step, 1)}, rate, decay);
    const Numbers gradients = numbers_in(session, Content::gradient);
    double squares = 0;
    for (const auto& [who, gradient] : gradients)
      for (const double g : gradient) squares += g * g;
    const double norm = std::sqrt(squares), factor = clip > 0 ? std::min(1., clip / (norm + 1e-6)) : 1;
    if (clip > 0) {
      EXPECT_NEAR(*result.gradient_norm, norm, 1e-12 * norm);
    }
    const Numbers trained = numbers_in(session, Content::weight), momenta = numbers_in(session, Content::momentum);
    EXPECT_EQ(momenta.size(), momentum > 0 ? gradients.size() : 0);
    double moved = 0;
    for (const auto& [who, gradient] : gradients) {
      std::vector<double>&w = weights[who], &b = kept[who];
      b.resize(w.size());
      for (std::size_t i = 0; i < w.size(); ++i) {
        b[i] = momentum * b[i] + factor * gradient[i] + (decays.at(who) ? decay * w[i] : 0);
        w[i] -= rate * b[i];
        moved += std::abs(rate * b[i]);
        ASSERT_NEAR(trained.at(who)[i], w[i], 1e-13 * (1 + std::abs(w[i]))) << to_text(who) << " step " << step;
        if (momentum > 0) {
          ASSERT_NEAR(momenta.at(who)[i], b[i], 1e-13 * (1 + std::abs(b[i]))) << to_text(who);
        }
      }
    }
    EXPECT_GT(moved, 0.1);
  }
}

INSTANTIATE_TEST_SUITE_P(Of, SgdSteps,
                         testing::Values(Choice{0.9, 0.5, false}, Choice{0.5, 0, true}, Choice{0, 1, false},
                                         Choice{0, 0, true}),
                         [](const auto& of) {
                           return fmt::format("momentum{}clip{}{}", 100 * of.param.momentum, 100 * of.param.clip,
                                              of.param.decay_all ? "decay_all" : "");
                         });

using enum ShardingStrategy;
struct Division {
  ShardingStrategy strategy;
  int instances = 1;
  bool divided = false;
};
constexpr Division divisions[] = {{no_shard},    {optim},    {optim_grads},           {optim_grads_params},
                                  {no_shard, 2}, {optim, 2}, {optim_grads_params, 2}, {optim_grads_params, 2, true}};
RankCase divided(RankCase c, const Division& division) {
  c.ranks = 4;
  c.expert_ranks = 2;
  c.sharding = division.strategy;
  c.instances = division.instances;
  c.shard_over_instances = division.divided;
  return c;
}
std::string text_of(const RankCase& c) {
  return fmt::format("{} {} in {}{} momentum {}", c.config.pattern, name_of(c.sharding), c.instances,
                     c.shard_over_instances ? ", divided" : "", c.optimizer.momentum);
}

TEST(Sgd, of_every_layout_agrees_with_one_rank_in_double) {
  for (const double momentum : {0.9, 0.}) {
    RankCase one = sgd_case("M[*E]G-/[*E]", momentum);
    one.config.tied_embeddings = true;
    one.micro_batches = 8;
    const RankRun oracle = run_ranks(one);
    for (const Division& division : divisions) {
      RankCase c = divided(one, division);
      c.micro_batches = 2;
      c.weave = c.delay = c.parallel = c.overlap_updates = true;
      expect_near(run_ranks(c), oracle, 1e-9, text_of(c));
    }
  }
}

TEST(Sgd, of_bf16_weights_has_the_same_bits_in_every_order) {
  for (const double momentum : {0.9, 0.})
    for (const Division& division : divisions) {
      RankCase c = divided(sgd_case("[*E][*-]", momentum), division);
      c.dtype = DType::bf16;
      c.micro_batches = 3;
      c.clip = momentum > 0 ? 1 : 0;
      const RankRun plain = run_ranks(c);
      c.weave = c.delay = c.parallel = c.overlap_updates = true;
      const RankRun woven = run_ranks(c);
      EXPECT_EQ(woven.losses, plain.losses) << text_of(c);
      EXPECT_TRUE(woven.parameters == plain.parameters) << text_of(c);
    }
}

}  // namespace
}  // namespace weft
