// Every parameter's gradient against central differences of the loss in double precision, over options that no golden
// result has.
#include <cmath>

#include <gtest/gtest.h>

#include "tests/execute/parameter_numbers.h"
#include "weft/base/random.h"
#include "weft/device/cpu/device.h"
#include "weft/train/session.h"

namespace weft {
namespace {

ModelConfig tiny(const std::string& pattern) {
  ModelConfig c;
  c.pattern = pattern;
  c.hidden = 12;
  c.vocabulary = 11;
  c.padded_vocabulary = 13;
  c.attention = {.heads = 4, .kv_heads = 2, .head_dim = 6};
  c.mlp.ffn = 10;
  c.experts.experts = 5;
  c.experts.ffn = 7;
  c.experts.router.k = 2;
  c.mamba = {.heads = 4, .head_dim = 3, .groups = 2, .state = 5, .chunk = 4};
  c.delta_net = {.heads = 4, .key_heads = 2, .head_dim = 3, .key_dim = 5, .chunk = 4};
  c.init_std = 0.3;  // far from linear
  return c;
}

MicroBatch batch_of(const SessionOptions& o, std::uint64_t seed) {
  MicroBatch b;
  b.batch = o.batch;
  b.length = o.length;
  const auto words = static_cast<std::uint64_t>(o.config.vocabulary);
  for (std::int64_t i = 0; i < b.batch * b.length; ++i) {
    b.tokens.push_back(static_cast<std::int32_t>(random_below(seed, static_cast<std::uint64_t>(i), words)));
    b.labels.push_back(static_cast<std::int32_t>(random_below(seed + 1, static_cast<std::uint64_t>(i), words)));
  }
  return b;
}

// Perturbs some elements of every parameter and compares the change of the loss.
void check_gradients(const ModelConfig& config, int micro_batches = 1, std::int64_t length = 5) {
  CpuDevice device;
  SessionOptions o;
  o.config = config;
  o.precision.compute = DType::f64;
  o.batch = 2;
  o.length = length;
  o.plan.micro_batches = micro_batches;
  o.plan.kind = PlanKind::gradients;
  o.logits_slice_bytes = 13 * 8 * 3;  // three tokens per slice
  Session session(device, o);
  // Norms and biases too must not sit at a special value.
  const auto values_of = [](const ParameterPart& part) {
    std::vector<double> values = initial_numbers(part, 7);
    const std::uint64_t key = random_key(8, to_text(part.identity));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += 0.1 * random_normal(key, i);
    return values;
  };
  std::vector<MicroBatch> batches;
  for (int m = 0; m < micro_batches; ++m) batches.push_back(batch_of(o, static_cast<std::uint64_t>(10 + 2 * m)));

  set_numbers(session, values_of);
  session.gradients(batches);
  std::map<ParameterIdentity, std::vector<double>> gradients;
  each_numbers(session, Content::gradient, [&](const ParameterPart& part, const std::vector<double>& values) {
    gradients[part.identity] = values;
  });

  const auto loss_at = [&](const ParameterIdentity& who, std::int64_t element, double delta) {
    set_numbers(session, [&](const ParameterPart& part) {
      std::vector<double> values = values_of(part);
      if (part.identity == who) values[static_cast<std::size_t>(element)] += delta;
      return values;
    });
    if (config.experts.balance.any_loss()) {
      const StepResult r = session.gradients(batches);
      const BalanceSpec& b = config.experts.balance;
      const double coefficients[] = {b.aux_loss, b.sequence_aux_loss, b.global_aux_loss, b.z_loss};
      double sum = r.loss;
      for (std::size_t i = 0; i < r.router_losses.size(); ++i)
        sum += coefficients[i] * r.router_losses[i] * static_cast<double>(session.module().expert_layers.size());
      return sum;
    }
    double sum = 0;
    for (const MicroBatch& batch : batches) {
      const EvaluationLosses result = session.evaluator().losses(batch);
      sum += result.loss;
      for (double loss : result.mtp_losses)
        sum += config.mtp_loss_factor / static_cast<double>(result.mtp_losses.size()) * loss;
    }
    return sum / micro_batches;
  };
  for (const auto& [who, gradient] : gradients) {
    const auto count = std::ssize(gradient);
    for (std::int64_t element : {std::int64_t{0}, count / 3, count - 1}) {
      const double h = 1e-5;
      const double numeric = (loss_at(who, element, h) - loss_at(who, element, -h)) / (2 * h);
      // Central differences err by h^2 f''' and by rounding, 1e-16 / h.
      EXPECT_NEAR(gradient[static_cast<std::size_t>(element)], numeric, 1e-8 + 1e-6 * std::abs(numeric))
          << to_text(who) << " element " << element << " of " << config.pattern;
    }
  }
}

TEST(ModelGradients, attention_with_every_option) {
  ModelConfig c = tiny("**");
  c.attention.qkv_bias = c.attention.output_bias = c.attention.qk_norm = true;
  c.attention.window = 3;
  c.attention.rope.fraction = 2.0 / 3;
  c.zero_centred_norms = true;
  check_gradients(c);
}

TEST(ModelGradients, attention_with_sinks_and_yarn) {
  ModelConfig c = tiny("*");
  c.attention.sinks = c.attention.qkv_bias = true;
  c.attention.window = 2;
  c.attention.rope.scaling = RopeSpec::Scaling::yarn;
  c.attention.rope.factor = 4;
  c.attention.rope.original_positions = 16;
  c.attention.rope.magnitude = 1.3;
  c.attention.rope.truncate = false;
  check_gradients(c, 2);
}

ModelConfig tiny_latent(const std::string& pattern) {
  ModelConfig c = tiny(pattern);
  c.latent_attention = {.heads = 3, .q_rank = 5, .kv_rank = 7, .head_dim = 4, .rotary_dim = 2, .value_dim = 3};
  c.latent_attention.indexer = {.heads = 2, .dim = 4, .topk = 3};
  return c;
}

TEST(ModelGradients, latent_attention) {
  check_gradients(tiny_latent("++"), 2);
  ModelConfig c = tiny_latent("+");
  c.latent_attention.q_rank = 0;
  c.zero_centred_norms = true;
  c.latent_attention.scale = 0.7;
  c.latent_attention.rope.magnitude = 1.2;
  check_gradients(c);
  c.latent_attention.heads = 1;
  c.latent_attention.head_dim = 1;
  c.latent_attention.rotary_dim = 6;
  c.latent_attention.rope.style = RotaryStyle::half_split;
  check_gradients(c);
  check_gradients(tiny_latent("+"), 1, 1);
}

TEST(ModelGradients, sparse_attention) {
  check_gradients(tiny_latent("D"), 2);
  check_gradients(tiny_latent("[DE]+/D"), 1, 7);
  check_gradients(tiny_latent("D"), 1, 1);
}

// The indexer learns from its own loss and from nothing else, and nothing else learns from that.
TEST(ModelGradients, indexers_learn_from_their_own_loss) {
  CpuDevice device;
  SessionOptions o;
  o.config = tiny_latent("DD");
  o.config.latent_attention.indexer.loss_factor = 0.6;
  o.precision.compute = DType::f64;
  o.batch = 2;
  o.length = 7;
  o.plan.micro_batches = 2;
  o.plan.kind = PlanKind::gradients;
  Session session(device, o);
  const auto values_of = [](const ParameterPart& part) {
    std::vector<double> values = initial_numbers(part, 7);
    const std::uint64_t key = random_key(8, to_text(part.identity));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += 0.1 * random_normal(key, i);
    return values;
  };
  const std::vector<MicroBatch> batches{batch_of(o, 10), batch_of(o, 12)};
  const auto run_at = [&](const ParameterIdentity& who, std::int64_t element, double delta) {
    set_numbers(session, [&](const ParameterPart& part) {
      std::vector<double> values = values_of(part);
      if (part.identity == who) values[static_cast<std::size_t>(element)] += delta;
      return values;
    });
    return session.gradients(batches).indexer_loss;
  };
  EXPECT_GT(run_at({}, 0, 0), 0);
  std::map<ParameterIdentity, std::vector<double>> gradients;
  each_numbers(session, Content::gradient, [&](const ParameterPart& part, const std::vector<double>& values) {
    gradients[part.identity] = values;
  });
  int indexers = 0;
  for (const auto& [who, gradient] : gradients) {
    // The last layer's: what it reads does not move with its own parameters.
    if (!name_of(who.role).starts_with("indexer") || who.physical != 1) continue;
    ++indexers;
    for (std::int64_t element : {std::int64_t{0}, std::ssize(gradient) / 3, std::ssize(gradient) - 1}) {
      const double h = 1e-5, numeric = (run_at(who, element, h) - run_at(who, element, -h)) / (2 * h);
      EXPECT_NEAR(gradient[static_cast<std::size_t>(element)], numeric, 1e-8 + 1e-6 * std::abs(numeric))
          << to_text(who) << " element " << element;
    }
  }
  EXPECT_EQ(indexers, 5);
  // The language model's gradients are the same without it.
  o.config.latent_attention.indexer.loss_factor = 0;
  Session without(device, o);
  set_numbers(without, values_of);
  without.gradients(batches);
  each_numbers(without, Content::gradient, [&](const ParameterPart& part, const std::vector<double>& values) {
    EXPECT_EQ(values, gradients.at(part.identity)) << to_text(part.identity);
  });
}

TEST(ModelGradients, attention_without_rotary) {
  ModelConfig c = tiny("*");
  c.attention.rope.enabled = false;
  check_gradients(c);
}

TEST(ModelGradients, mlp_of_every_kind) {
  for (ActivationKind kind : {ActivationKind::swiglu, ActivationKind::squared_relu, ActivationKind::gelu}) {
    ModelConfig c = tiny("-");
    c.mlp.activation.kind = kind;
    c.mlp.bias = true;
    check_gradients(c);
  }
}

TEST(ModelGradients, experts_with_every_router) {
  for (const bool sigmoid : {false, true})
    for (const bool choose_first : {false, true})
      for (const bool normalise : {false, true}) {
        ModelConfig c = tiny("E");
        c.experts.router.score = sigmoid ? RouterSpec::Score::sigmoid : RouterSpec::Score::softmax;
        c.experts.router.choose_first = choose_first && !sigmoid;
        c.experts.router.normalise = normalise;
        c.experts.router.scaling = 1.5;
        check_gradients(c);
      }
}

TEST(ModelGradients, clamped_activations_and_biases_of_experts_and_router) {
  for (const ActivationSpec& activation : {ActivationSpec{ActivationKind::clamped_swiglu, 0.4},
                                           ActivationSpec{ActivationKind::quick_geglu, 0.5, 1.702, 1}}) {
    ModelConfig c = tiny("-E");
    c.mlp.activation = c.experts.activation = activation;
    c.mlp.bias = c.experts.bias = c.experts.router_bias = true;
    check_gradients(c, 2);
  }
}

TEST(ModelGradients, experts_of_the_best_groups) {
  for (const bool sigmoid : {false, true}) {
    ModelConfig c = tiny("E");
    c.experts.experts = 6;
    c.experts.router = {.score = sigmoid ? RouterSpec::Score::sigmoid : RouterSpec::Score::softmax,
                        .choose_first = !sigmoid,
                        .normalise = sigmoid,
                        .scaling = 2,
                        .k = 3,
                        .groups = 3,
                        .keep_groups = 2,
                        .group_best = 2};
    check_gradients(c);
  }
}

// The bias takes part in the choice, which no gradient sees.
TEST(ModelGradients, experts_chosen_with_a_bias) {
  ModelConfig c = tiny("EE");
  c.experts.router.score = RouterSpec::Score::sigmoid;
  c.experts.router.choose_first = false;
  c.experts.router.normalise = true;
  c.experts.expert_bias = true;
  check_gradients(c);
}

TEST(ModelGradients, shared_experts_and_squared_relu) {
  ModelConfig c = tiny("[*E]E");
  c.experts.shared_ffn = 6;
  c.experts.activation.kind = ActivationKind::squared_relu;
  check_gradients(c);
}

TEST(ModelGradients, router_losses) {
  for (const bool sigmoid : {false, true})
    for (const bool biased : {false, true}) {
      if (biased && !sigmoid) continue;
      ModelConfig c = tiny("E*E");
      c.experts.router.score = sigmoid ? RouterSpec::Score::sigmoid : RouterSpec::Score::softmax;
      c.experts.router.choose_first = false;
      c.experts.expert_bias = biased;  // the choice is not that of the largest scores
      c.experts.balance.aux_loss = 0.3;
      c.experts.balance.sequence_aux_loss = 0.2;
      c.experts.balance.global_aux_loss = 0.4;
      c.experts.balance.z_loss = 0.1;
      check_gradients(c, 3);
    }
}

TEST(ModelGradients, experts_with_a_capacity) {
  for (const bool pad : {false, true})
    for (DropChoices::Policy policy : {DropChoices::Policy::probabilities, DropChoices::Policy::position}) {
      ModelConfig c = tiny("E*E");
      c.experts.router.choose_first = false;
      c.experts.router.normalise = true;
      c.experts.shared_ffn = 6;
      c.experts.balance.capacity_factor = 0.7;
      c.experts.balance.drop_policy = policy;
      c.experts.balance.pad_to_capacity = pad;
      check_gradients(c, 2);
    }
}

TEST(ModelGradients, one_expert_all_chosen_one_token) {
  ModelConfig c = tiny("E");
  c.experts.experts = c.experts.router.k = 1;
  check_gradients(c, 1, 1);
  c.experts.experts = c.experts.router.k = 3;
  check_gradients(c);
}

TEST(ModelGradients, mamba_with_every_option) {
  ModelConfig c = tiny("MM");
  check_gradients(c, 2, 7);  // chunks of 4 and 3
  c.mamba.groups = 1;
  c.mamba.conv_bias = c.mamba.norm_by_group = false;
  c.mamba.step_least = 0.001;
  c.mamba.step_most = 0.08;
  c.zero_centred_norms = true;
  check_gradients(c);
  check_gradients(c, 1, 1);
}

TEST(ModelGradients, delta_net) {
  check_gradients(tiny("GG"), 2, 7);
  ModelConfig c = tiny("G");
  c.delta_net.key_heads = 4;
  c.delta_net.taps = 2;
  c.zero_centred_norms = true;
  check_gradients(c);
  check_gradients(c, 1, 1);
}

// One head of one group, one token; and a length that no chunk divides.
TEST(ModelGradients, one_head_of_every_kind) {
  for (const char* pattern : {"*", "+", "D", "M", "G"}) {
    ModelConfig c = tiny(pattern);
    c.attention.heads = c.attention.kv_heads = 1;
    c.latent_attention = {.heads = 1, .kv_rank = 3, .head_dim = 3, .rotary_dim = 2, .value_dim = 5};
    c.latent_attention.indexer = {.heads = 1, .dim = 4, .topk = 2};
    if (*pattern == 'D') c.latent_attention.q_rank = 7;
    c.mamba.heads = c.mamba.groups = 1;
    c.delta_net.heads = c.delta_net.key_heads = 1;
    check_gradients(c, 1, 1);
    check_gradients(c, 1, 7);
  }
}

TEST(ModelGradients, gates_of_attention_and_of_the_shared_expert) {
  ModelConfig c = tiny("[*E]");
  c.attention.output_gate = true;
  c.experts.shared_ffn = 6;
  c.experts.shared_gate = true;
  check_gradients(c);
  c.attention.qk_norm = true;
  check_gradients(c);
}

TEST(ModelGradients, latent_experts) {
  ModelConfig c = tiny("[*E]E");
  c.experts.latent = 8;
  check_gradients(c, 2);
  c.experts.shared_ffn = 6;
  check_gradients(c);
}

// Latent experts are experts whose two matrices are products with the latent ones.
TEST(ModelLoss, of_latent_experts_is_that_of_the_products) {
  ModelConfig c = tiny("E");
  c.experts.latent = 8;
  c.experts.shared_ffn = 6;
  c.experts.activation.kind = ActivationKind::squared_relu;
  CpuDevice device;
  SessionOptions o;
  o.config = c;
  o.precision.compute = DType::f64;
  o.length = 9;
  o.plan.kind = PlanKind::gradients;
  const MicroBatch batch = batch_of(o, 3);
  Session latent(device, o);
  latent.initialise_parameters(5);
  std::map<ParameterIdentity, std::vector<double>> weights;
  each_numbers(latent, Content::weight,
               [&](const ParameterPart& part, const std::vector<double>& values) { weights[part.identity] = values; });
  o.config.experts.latent = 0;
  Session plain(device, o);
  set_numbers(plain, [&](const ParameterPart& part) {
    if (part.identity.expert < 0) return weights.at(part.identity);
    ParameterIdentity other = part.identity;
    other.expert = -1;
    const bool up = part.identity.role == Role::up;
    other.role = up ? Role::latent_down : Role::latent_up;
    const std::vector<double>&a = weights.at(up ? part.identity : other), &b = weights.at(up ? other : part.identity);
    const std::int64_t rows = part.shape[0], columns = part.shape[1], inner = 8;
    std::vector<double> values;
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j) {
        double sum = 0;
        for (std::int64_t p = 0; p < inner; ++p)
          sum += a[static_cast<std::size_t>(i * inner + p)] * b[static_cast<std::size_t>(p * columns + j)];
        values.push_back(sum);
      }
    return values;
  });
  const double loss = latent.evaluator().loss(batch);
  EXPECT_NEAR(loss, plain.evaluator().loss(batch), 1e-13 * loss);
}

TEST(ModelGradients, hybrids) {
  check_gradients(tiny("MEM*EME"), 1, 6);
  check_gradients(tiny("M[M*]-[GE]"), 2, 6);
}

TEST(ModelGradients, tied_embeddings_and_several_micro_batches) {
  ModelConfig c = tiny("[*-][*E]");
  c.tied_embeddings = true;
  check_gradients(c, 3);
}

TEST(ModelGradients, multi_token_prediction) {
  for (const char* pattern : {"*/*", "[*-]/[*E]/[*E]", "/-/-", "+-/+E"}) {
    ModelConfig c = tiny_latent(pattern);
    c.mtp_loss_factor = 0.7;
    c.tied_embeddings = c.zero_centred_norms = std::string(pattern) == "[*-]/[*E]/[*E]";
    check_gradients(c, 2);
  }
}

// A sequence of two tokens has nothing to predict at the second depth.
TEST(ModelGradients, more_depths_than_tokens) {
  ModelConfig c = tiny("-/-/-/-");
  c.mtp_loss_factor = 0.5;
  check_gradients(c, 1, 2);
}

TEST(ModelGradients, an_empty_pattern_is_a_model_too) { check_gradients(tiny("")); }

}  // namespace
}  // namespace weft
