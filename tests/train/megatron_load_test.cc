// Megatron's checkpoints in tests/golden/torch_dist, written by PyTorch, loaded into a session: Hugging Face's logits.
#include <cmath>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/data/temporary_folder.h"
#include "weft/base/error.h"
#include "weft/checkpoint/hugging_face.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/comm/local/cluster.h"
#include "weft/device/cpu/device.h"
#include "weft/train/checkpoint_saver.h"
#include "weft/train/digest.h"
#include "weft/train/save_load.h"
#include "weft/train/session.h"

namespace weft {
namespace {

using testing::HasSubstr;

std::filesystem::path golden(const std::string& name) {
  return std::filesystem::path(WEFT_SOURCE_DIR) / "tests/golden" / name;
}

ModelConfig config_of(const std::string& pattern) {
  ModelConfig config = read_hugging_face_config(golden("qwen3_moe")).config;
  config.pattern = pattern;
  return config;
}

SessionOptions options_of(const ModelConfig& config, DType dtype, World* world = nullptr, int expert_ranks = 1) {
  SessionOptions o;
  o.config = config;
  o.precision.compute = dtype;
  o.batch = 2;
  o.length = 24;
  o.threads = world ? 1 : 2;
  o.ranks.world = world;
  o.layout = Layout::of_data_and_experts(world ? world->size() : 1, expert_ranks, world ? world->rank() : RankId(0));
  return o;
}

MicroBatch batch_in(const std::filesystem::path& file) {
  const SafetensorsFile tokens(file);
  MicroBatch batch;
  batch.batch = 2;
  batch.length = 24;
  batch.tokens.resize(48);
  read_as(tokens.at("input_ids"), DType::i32, batch.tokens.data());
  batch.labels = batch.tokens;
  return batch;
}

double error_of_logits(Session& session, const std::filesystem::path& file) {
  const SafetensorsFile expected(file);
  std::vector<double> theirs(48 * 96);
  read_as(expected.at("logits"), DType::f64, theirs.data());
  const std::vector<double> ours = session.evaluator().batch_logits(batch_in(file));
  EXPECT_EQ(ours.size(), theirs.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    difference += (ours[i] - theirs[i]) * (ours[i] - theirs[i]);
    norm += theirs[i] * theirs[i];
  }
  return std::sqrt(difference / norm);
}

std::unique_ptr<CheckpointReader> open(const std::string& name, const ModelConfig& config,
                                       MasterWeights masters = MasterWeights::where_wider) {
  return open_checkpoint(*find_checkpoint(golden("torch_dist") / name), config, masters);
}

TEST(MegatronGolden, every_form_gives_hugging_faces_logits) {
  struct Case {
    const char *checkpoint, *pattern;
  };
  // Each also as a model of the other kind.
  for (const Case& c : {Case{"hybrid", "[*E][*E]"}, Case{"hybrid", "*E*E"}, Case{"gpt", "[*E][*E]"},
                        Case{"gpt", "*E*E"}, Case{"flat_bf16", "*E*E"}, Case{"flat_bf16", "[*E][*E]"}}) {
    SCOPED_TRACE(std::string(c.checkpoint) + " as " + c.pattern);
    CpuDevice device;
    const ModelConfig config = config_of(c.pattern);
    Session session(device, options_of(config, DType::f64));
    const RunPosition position = load_checkpoint(session, *open(c.checkpoint, config), {.optimizer = false});
    EXPECT_EQ(position.iteration, 7);
    EXPECT_EQ(position.consumed_samples, 28);
    EXPECT_LT(error_of_logits(session, golden("qwen3_moe") / "golden.safetensors"), 1e-9);
  }
}

TEST(MegatronGolden, without_masters_the_weights_are_the_models_tensors) {
  CpuDevice device;
  const ModelConfig config = config_of("*E*E");
  Session session(device, options_of(config, DType::f64));
  load_checkpoint(session, *open("flat_bf16", config, MasterWeights::never), {.optimizer = false});
  EXPECT_LT(error_of_logits(session, golden("torch_dist") / "bf16.safetensors"), 1e-9);
  EXPECT_GT(error_of_logits(session, golden("qwen3_moe") / "golden.safetensors"), 1e-5);
}

// Weights, remainders and moments are those of the file, bit for bit, however they are spread.
TEST(MegatronGolden, loads_with_the_optimizer_into_any_layout) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const ModelConfig config = config_of("[*E][*E]");
    std::string weights, states;
    const auto load = [&](World* world, int expert_ranks) {
      CpuDevice device;
      Session session(device, options_of(config, dtype, world, expert_ranks));
      const RunPosition position = load_checkpoint(session, *open("hybrid", config));
      EXPECT_EQ(position.optimizer_steps, 7);
      EXPECT_EQ(session.steps_taken(), 7);
      const std::string own_weights = weight_digest(session), own_states = state_digest(session);
      if (world != nullptr && world->rank().value != 0) return;
      if (weights.empty()) {
        weights = own_weights;
        states = own_states;
      }
      EXPECT_EQ(own_weights, weights) << expert_ranks;
      EXPECT_EQ(own_states, states) << expert_ranks;
    };
    load(nullptr, 1);
    for (const auto& [ranks, expert_ranks] : {std::pair{2, 1}, {2, 2}, {4, 2}})
      LocalCluster(ranks).run([&](World& world) { load(&world, expert_ranks); });
    EXPECT_NE(weights, "");
  }
}

// In another form of our own it is the same checkpoint: the run goes on from it.
TEST(MegatronGolden, is_saved_in_wefts_form_and_loaded_again) {
  const TemporaryFolder folder;
  CpuDevice device;
  const ModelConfig config = config_of("*E*E"), groups = config_of("[*E][*E]");
  Session session(device, options_of(config, DType::f32));
  const RunPosition position = load_checkpoint(session, *open("hybrid", config));
  save_checkpoint(session, {folder.file("run")}, position, "{}");
  Session other(device, options_of(groups, DType::f32));
  const RunPosition again = load_checkpoint(other, *open_checkpoint(*find_checkpoint(folder.file("run")), groups));
  EXPECT_EQ(again.iteration, 7);
  EXPECT_EQ(again.optimizer_steps, 7);
  EXPECT_EQ(weight_digest(other), weight_digest(session));
  EXPECT_EQ(state_digest(other), state_digest(session));
}

std::string error_of(const std::string& name, const ModelConfig& config, const LoadOptions& options) {
  CpuDevice device;
  Session session(device, options_of(config, DType::f32));
  return message_of<UserError>([&] { load_checkpoint(session, *open(name, config), options); });
}

TEST(MegatronGolden, says_what_it_lacks_and_what_to_do) {
  const std::string gpt = (golden("torch_dist") / "gpt/iter_0000007").string();
  EXPECT_EQ(error_of("gpt", config_of("[*E][*E]"), {}),
            gpt +
                ": the optimizer's state is not in the checkpoint (the first moment of language.main.embedding); "
                "load it with --no-load-optim or --finetune");
  EXPECT_THAT(error_of("gpt", config_of("[*E][*E]/[*E]"), {.optimizer = false}),
              HasSubstr("parameters of this model are not in the checkpoint"));
  EXPECT_THAT(error_of("hybrid", config_of("[*E]"), {.strictness = Strictness::raise_all}),
              HasSubstr("tensors of the checkpoint are not of this model: decoder.layers.1."));
  EXPECT_EQ(error_of("hybrid", config_of("[*E]"), {.strictness = Strictness::raise_unexpected}), "");
}

TEST(Strictness, absent_parameters_may_keep_their_initial_values) {
  CpuDevice device;
  ModelConfig config = config_of("[*E][*E][*-]");
  config.mlp.ffn = 16;
  Session fresh(device, options_of(config, DType::f32));
  fresh.initialise_parameters(3);
  struct Case {
    Strictness strictness;
    bool raises;
    std::size_t warnings;
  };
  for (const Case& c : {Case{Strictness::assume_ok_unexpected, true, 0}, Case{Strictness::raise_unexpected, true, 0},
                        Case{Strictness::raise_all, true, 0}, Case{Strictness::log_unexpected, false, 1},
                        Case{Strictness::log_all, false, 1}, Case{Strictness::return_unexpected, false, 0},
                        Case{Strictness::return_all, false, 0}, Case{Strictness::ignore_all, false, 0}}) {
    std::vector<std::string> warnings;
    std::optional<LoadDifferences> returned;
    LoadOptions load{true, c.strictness, 3, [&](const std::string& text) { warnings.push_back(text); }};
    load.differ = [&](const LoadDifferences& differences) { returned = differences; };
    Session session(device, options_of(config, DType::f32));
    const std::string error = message_of<UserError>([&] { load_checkpoint(session, *open("hybrid", config), load); });
    EXPECT_EQ(!error.empty(), c.raises) << error;
    ASSERT_EQ(warnings.size(), c.warnings);
    if (c.warnings > 0) {
      EXPECT_THAT(warnings[0], HasSubstr("11 parameters are not in the checkpoint and keep their initial values: "
                                         "language.main.4.norm"));
    }
    const bool returns_all = c.strictness == Strictness::return_all;
    ASSERT_EQ(returned.has_value(), returns_all || c.strictness == Strictness::return_unexpected);
    if (returned) {
      EXPECT_EQ(returned->unexpected.size(), 11u);
      EXPECT_EQ(returned->unexpected.front(), "language.main.4.norm");
      EXPECT_EQ(returned->missing.has_value(), returns_all);
    }
    if (c.raises) continue;
    std::vector<std::vector<double>> values;  // of the third layer
    for (Session* s : {&fresh, &session}) {
      values.emplace_back();
      s->parameters().each(Content::weight, [&](const ParameterPart& part, const HostTensor& tensor) {
        if (part.identity.physical >= 4)
          each_number(part, tensor, [&](std::int64_t, double number) { values.back().push_back(number); });
      });
    }
    EXPECT_FALSE(values[0].empty());
    EXPECT_EQ(values[0], values[1]);
  }
}

}  // namespace
}  // namespace weft
