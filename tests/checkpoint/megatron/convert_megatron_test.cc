// A model written as a Megatron checkpoint: under the names and in the chunks that Megatron has, and the same bits.
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/checkpoint/megatron/megatron_folder_made.h"
#include "tests/checkpoint/model_folder.h"
#include "tests/checkpoint/torch_dist/sha256.h"
#include "weft/base/error.h"
#include "weft/checkpoint/convert.h"
#include "weft/checkpoint/megatron/megatron_checkpoint.h"
#include "weft/checkpoint/megatron/megatron_keys.h"
#include "weft/checkpoint/megatron/megatron_source.h"
#include "weft/checkpoint/parameter_list.h"
#include "weft/checkpoint/run_checkpoint.h"

namespace weft {
namespace {

// A model of a run, with values from made_value.
class MadeModel : public ModelSource {
 public:
  MadeModel(ModelConfig config, std::optional<DType> compute, bool moments) : moments_(moments) {
    description_.config = std::move(config);
    description_.compute = compute;
    for (const ListedParameter& parameter : parameters_of(description_.config))
      trained_[parameter.identity] = parameter.trained;
  }
  const ModelDescription& description() const override { return description_; }
  std::optional<StoredType> type_of(Content content, const ParameterIdentity& identity) const override {
    if (content == Content::momentum || (content != Content::weight && !(moments_ && trained_.at(identity))))
      return std::nullopt;
    return StoredType::f32;
  }
  void read(Content content, const ParameterIdentity& identity, const Shape& shape, StoredType type,
            std::span<std::byte> out) const override {
    std::vector<float> values;
    for (std::int64_t i = 0; i < shape.elements(); ++i) values.push_back(made_value(content, identity, i) + 1e-3f);
    store(DType::f32, reinterpret_cast<const std::byte*>(values.data()), type, out.data(), shape.elements());
  }
  void read(Content, const ParameterPart&, HostTensor&) const override { FAIL() << "parameters are read as a whole"; }
  std::size_t tensors() const override { return trained_.size(); }
  std::optional<SavedRun> run() const override {
    std::optional<SavedRun> record(std::in_place);
    record->position = {12, 96, 11};
    record->arguments =
        R"({"lr": "0.001", "min_lr": "1e-05", "global_batch_size": "8", "train_iters": "100", "adam_beta2": "0.98",
            "weight_decay": "0.1", "lr_decay_style": "cosine", "lr_warmup_iters": "2", "hidden_size": "8"})";
    return record;
  }

 private:
  ModelDescription description_;
  std::map<ParameterIdentity, bool> trained_;
  bool moments_;
};

ModelConfig small_config(const std::string& pattern) {
  ModelConfig config;
  config.pattern = pattern;
  config.hidden = 8;
  config.vocabulary = 11;
  config.attention = {.heads = 4, .kv_heads = 2, .head_dim = 4, .qk_norm = true};
  config.mlp.ffn = 5;
  config.experts.experts = 3;
  config.experts.ffn = 6;
  config.experts.router.score = RouterSpec::Score::sigmoid;
  config.experts.expert_bias = true;
  return config;
}

ConvertOptions to_folder(const std::filesystem::path& out) {
  ConvertOptions options;
  options.to = CheckpointFormat::megatron;
  options.out = out;
  return options;
}

std::vector<std::byte> values_of(const TorchDistCheckpoint& checkpoint, const std::string& name) {
  const ShardedTensor& tensor = checkpoint.at(name);
  std::vector<std::byte> bytes(static_cast<std::size_t>(bytes_of(tensor.shape, tensor.type).value()));
  checkpoint.read(tensor, Box::whole(tensor.shape), bytes);
  return bytes;
}

// Every parameter of the source is found again by the reader of Megatron's checkpoints.
void expect_weights(const ModelSource& source, const std::filesystem::path& folder) {
  const ModelConfig& config = source.description().config;
  const MegatronCheckpoint written(folder, config, MasterWeights::where_wider);
  for (const ListedParameter& parameter : parameters_of(config)) {
    ParameterPart part;
    part.identity = parameter.identity;
    part.shape = parameter.shape;
    part.box = Box::whole(parameter.shape);
    HostTensor found(DType::f32, parameter.shape.elements());
    written.read(Content::weight, part, found);
    std::vector<std::byte> expected(found.bytes.size());
    source.read(Content::weight, parameter.identity, parameter.shape, StoredType::f32, expected);
    EXPECT_TRUE(found.bytes == expected) << to_text(parameter.identity);
  }
}

class ConvertMegatron : public ::testing::TestWithParam<const char*> {};

TEST_P(ConvertMegatron, every_weight_of_a_family_is_found_again) {
  const ModelFolder parent;
  const std::unique_ptr<ModelSource> source = open_hugging_face(golden_folder(GetParam()));
  const ConvertResult result = write_megatron(*source, to_folder(parent.file("out")));
  EXPECT_GT(result.parameters, 0);
  expect_weights(*source, parent.file("out"));
  EXPECT_EQ(read_file(parent.file("out") / "latest_checkpointed_iteration.txt"), "release");
  const TorchDistCheckpoint written(parent.file("out"));
  for (const ShardedTensor& tensor : written.tensors())
    EXPECT_FALSE(tensor.name.starts_with("optimizer")) << tensor.name;
  EXPECT_EQ(written.objects().size(), 1u);  // no _extra_state, no rng_state
  // The model is there as it is, whatever Megatron has no args for, and so the way back gives the same folder.
  const auto again = open_megatron_of_weft(*find_checkpoint(parent.file("out")));
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(to_json(again->description().config), to_json(source->description().config));
  ConvertOptions back;
  back.out = parent.file("back");
  write_hugging_face(*again, back);
  EXPECT_TRUE(read_file(parent.file("back") / "model.safetensors") ==
              read_file(golden_folder(GetParam()) / "model.safetensors"));
  EXPECT_EQ(read_file(parent.file("back") / "config.json"), read_file(golden_folder(GetParam()) / "config.json"));
}

INSTANTIATE_TEST_SUITE_P(Families, ConvertMegatron,
                         ::testing::Values("llama", "llama_b", "mixtral", "mixtral_b", "qwen3_moe", "qwen3_moe_b",
                                           "gpt_oss", "deepseek_v3", "deepseek_v3_b", "deepseek_v3_mtp", "deepseek_v32",
                                           "mamba2", "nemotron_h", "qwen3_next"));

// The same weights, as Megatron keeps them in three forms.
TEST(ConvertMegatronGolden, names_chunks_and_bytes_are_those_of_the_golden_checkpoints) {
  const std::unique_ptr<ModelSource> source = open_hugging_face(golden_folder("qwen3_moe"));
  const Json expected = read_json(golden_folder("torch_dist") / "expected.json");
  for (const bool stacked : {false, true}) {
    const ModelFolder parent;
    ConvertOptions options = to_folder(parent.file("out"));
    options.megatron_stacked_layers = stacked;
    write_megatron(*source, options);
    const TorchDistCheckpoint written(parent.file("out"));
    const Json& golden = expected.at(stacked ? "gpt" : "hybrid");
    std::size_t model = 0;
    for (const auto& [name, about] : golden.at("tensors").items()) {
      if (name.starts_with("optimizer")) continue;
      ++model;
      const ShardedTensor& tensor = written.at(name);
      if (stacked && (name == "embedding.word_embeddings.weight" || name == "output_layer.weight"))
        continue;  // padded there
      EXPECT_EQ(sha256(values_of(written, name)), about.at("sha256").get<std::string>()) << name;
      if (!stacked) {
        EXPECT_EQ(tensor.chunks.size(), about.at("chunks").get<std::size_t>()) << name;
      }
    }
    EXPECT_EQ(written.tensors().size(), model);
    for (const char* const name : {"num_layers",
                                   "hidden_size",
                                   "num_attention_heads",
                                   "num_query_groups",
                                   "kv_channels",
                                   "num_experts",
                                   "moe_router_topk",
                                   "moe_ffn_hidden_size",
                                   "moe_router_pre_softmax",
                                   "moe_router_score_function",
                                   "moe_layer_freq",
                                   "qk_layernorm",
                                   "swiglu",
                                   "hybrid_layer_pattern",
                                   "is_hybrid_model",
                                   "rotary_base",
                                   "position_embedding_type",
                                   "untie_embeddings_and_output_weights",
                                   "norm_epsilon",
                                   "group_query_attention"})
      EXPECT_EQ(written.args().at(name), golden.at("args").at(name)) << name;
  }
}

TEST(ConvertMegatronOptimizer, bf16_models_have_rounded_weights_and_exact_masters) {
  const ModelFolder parent;
  const MadeModel source(small_config("[*-][*E]"), DType::bf16, true);
  write_megatron(source, to_folder(parent.file("out")));
  const TorchDistCheckpoint written(parent.file("out"));
  const std::string key = "decoder.layers.1.mlp.experts.experts.linear_fc1.weight";
  EXPECT_EQ(written.at(key).type, StoredType::bf16);
  EXPECT_EQ(written.at("decoder.layers.1.mlp.router.weight").type, StoredType::f32);
  for (const char* const state : {"param", "exp_avg", "exp_avg_sq"}) {
    const ShardedTensor& tensor = written.at(fmt::format("optimizer.state.{}.{}", state, key));
    EXPECT_EQ(tensor.type, StoredType::f32);
    EXPECT_EQ(tensor.shape, written.at(key).shape);
  }
  // Not trained, and so without state.
  EXPECT_NE(written.find("decoder.layers.1.mlp.router.expert_bias"), nullptr);
  EXPECT_EQ(written.find("optimizer.state.exp_avg.decoder.layers.1.mlp.router.expert_bias"), nullptr);
  // The masters, and not the rounded weights, are what goes on.
  expect_weights(source, parent.file("out"));
  const std::vector<std::byte> rounded = values_of(written, "decoder.final_layernorm.weight"),
                               exact = values_of(written, "optimizer.state.param.decoder.final_layernorm.weight");
  std::vector<std::byte> again(rounded.size());
  store(DType::f32, exact.data(), StoredType::bf16, again.data(), 8);
  EXPECT_EQ(again, rounded);
}

TEST(ConvertMegatronOptimizer, moments_and_position_are_found_again) {
  const ModelFolder parent;
  const MadeModel source(small_config("[*E][*E]"), DType::f32, true);
  ConvertOptions options = to_folder(parent.file("out"));
  options.megatron_stacked_layers = true;
  write_megatron(source, options);
  EXPECT_EQ(read_file(parent.file("out") / "latest_checkpointed_iteration.txt"), "12");
  EXPECT_TRUE(std::filesystem::exists(parent.file("out") / "iter_0000012" / "metadata.json"));
  const ModelConfig& config = source.description().config;
  const MegatronCheckpoint written(parent.file("out"), config, MasterWeights::where_wider);
  EXPECT_EQ(written.position().iteration, 12);
  EXPECT_EQ(written.position().consumed_samples, 96);
  EXPECT_EQ(written.position().optimizer_steps, 11);
  for (const Content content : {Content::first_moment, Content::second_moment}) {
    for (const ListedParameter& parameter : parameters_of(config)) {
      if (!parameter.trained) continue;
      ParameterPart part;
      part.identity = parameter.identity;
      part.shape = parameter.shape;
      part.box = Box::whole(parameter.shape);
      HostTensor found(DType::f32, parameter.shape.elements());
      written.read(content, part, found);
      std::vector<std::byte> expected(found.bytes.size());
      source.read(content, parameter.identity, parameter.shape, StoredType::f32, expected);
      EXPECT_TRUE(found.bytes == expected) << to_text(parameter.identity);
    }
  }
  const Json& state = written.files().shared_state();
  EXPECT_EQ(state.at("opt_param_scheduler"),
            Json::parse(R"({"max_lr": 0.001, "lr_warmup_steps": 16, "num_steps": 96, "lr_decay_style": "cosine",
                            "lr_decay_steps": 800, "min_lr": 1e-05, "start_wd": 0.1, "end_wd": 0.1,
                            "wd_incr_style": "constant", "wd_incr_steps": 800})"));
  EXPECT_EQ(state.at("content_metadata").at("distrib_optim_sharding_type"), "fully_reshardable");
  const Json& groups = state.at("optimizer").at("optimizer").at("param_groups");
  ASSERT_EQ(groups.size(), 4u);
  EXPECT_EQ(groups[0].at("step"), 11);
  EXPECT_EQ(groups[0].at("betas"), Json::parse("[0.9, 0.98]"));
  EXPECT_EQ(groups[1].at("wd_mult"), 0.0);
  EXPECT_EQ(written.files().args().at("no_save_rng"), true);
  EXPECT_EQ(written.files().args().at("no_save_optim"), false);
  EXPECT_EQ(written.files().args().at("adam_beta2"), 0.98);
}

TEST(ConvertMegatronOptimizer, without_its_state_weights_keep_all_bits) {
  const ModelFolder parent;
  const MadeModel source(small_config("*-*E"), DType::bf16, false);
  write_megatron(source, to_folder(parent.file("out")));
  expect_weights(source, parent.file("out"));
  EXPECT_EQ(TorchDistCheckpoint(parent.file("out")).args().at("no_save_optim"), true);
}

// Layers that differ, as of DeepSeek's: a key for each, transformer_layer, and args that make them.
TEST(ConvertMegatronTransformer, has_the_keys_and_the_args_of_a_transformer) {
  const ModelFolder parent;
  ConvertOptions options = to_folder(parent.file("out"));
  options.megatron_transformer = true;
  const MadeModel source(small_config("[*-][*E][*E]/[*E]"), DType::bf16, true);
  write_megatron(source, options);
  expect_weights(source, parent.file("out"));
  const TorchDistCheckpoint written(parent.file("out"));
  EXPECT_EQ(written.args().at("num_layers"), 3);
  EXPECT_EQ(written.args().at("moe_layer_freq"), Json::parse("[0, 1, 1]"));
  EXPECT_EQ(written.args().at("mtp_num_layers"), 1);
  EXPECT_TRUE(written.args().at("hybrid_layer_pattern").is_null());
  EXPECT_EQ(written.args().at("is_hybrid_model"), false);
  for (const char* const key :
       {"decoder.layers.0.mlp.linear_fc1.weight", "decoder.layers.2.mlp.experts.experts.linear_fc1.weight",
        "mtp.layers.0.transformer_layer.mlp.experts.experts.linear_fc1.weight",
        "optimizer.state.exp_avg.mtp.layers.0.transformer_layer.self_attention.linear_qkv.weight",
        "decoder.final_layernorm.weight"})
    EXPECT_NE(written.find(key), nullptr) << key;
  for (const ShardedTensor& tensor : written.tensors())
    EXPECT_EQ(tensor.name.find("mtp_model_layer"), std::string::npos) << tensor.name;
  // Where layers are alike, Megatron stacks them.
  const ModelFolder other;
  options.out = other.file("out");
  write_megatron(MadeModel(small_config("*E*E/*E"), DType::f32, true), options);
  const TorchDistCheckpoint stacked(options.out);
  EXPECT_EQ(stacked.at("decoder.layers.mlp.experts.experts.linear_fc2.weight").shape, (Shape{2, 3, 8, 6}));
  EXPECT_NE(stacked.find("mtp.layers.0.transformer_layer.mlp.router.weight"), nullptr);
  EXPECT_EQ(stacked.args().at("moe_layer_freq"), 1);
}

// A checkpoint of Megatron's: its model, and more tensors.
class MadeSource {
 public:
  MadeSource(const MadeTensors& more, MasterWeights masters = MasterWeights::where_wider) {
    MadeTensors made = made_tensors(megatron_tensors(config_, megatron_form(config_)), Content::weight);
    made.insert(made.end(), more.begin(), more.end());
    write_made(folder_, made);
    source_ = open_megatron({folder_.path(), CheckpointForm::megatron}, config_, "{}", masters);
  }
  std::string where() const { return folder_.path().string(); }
  // The message that refuses it; "": it is done.
  std::string write(CheckpointFormat to, bool optimizer) const {
    ConvertOptions options = to_folder(parent_.file("out"));
    options.to = to;
    options.optimizer = optimizer;
    const std::string message = message_of<UserError>([&] { convert_checkpoint(*source_, options); });
    EXPECT_EQ(listing(parent_.path()).size(), message.empty() ? 1u : 0u);  // nothing is left of it
    return message;
  }
  std::filesystem::path out() const { return parent_.file("out"); }
  const ModelConfig& config() const { return config_; }

 private:
  ModelFolder folder_, parent_;
  ModelConfig config_ = small_config("[*-]");
  std::unique_ptr<ModelSource> source_;
};

TEST(ConvertMegatronErrors, optimizer_state_in_buckets_is_refused_and_left_only_on_demand) {
  const MadeTensors buckets = {
      {"chained_0.optimizer.distributed.dp_group_idx_0.gbuf_idx_0.exp_avg", {4}, {1, 2, 3, 4}}};
  for (const CheckpointFormat to : {CheckpointFormat::weft, CheckpointFormat::megatron}) {
    const MadeSource source(buckets);
    EXPECT_EQ(
        source.write(to, true),
        source.where() +
            ": its optimizer's state has the form dp_reshardable, buckets of the layout that wrote it, which Weft does "
            "not read; take the weights alone with --no-load-optim, or save it in Megatron with "
            "--dist-ckpt-optim-fully-reshardable");
    EXPECT_EQ(source.write(to, false), "");
  }
}

TEST(ConvertMegatronErrors, moments_of_some_parameters_alone_are_refused) {
  const ModelConfig config = small_config("[*-]");
  MadeTensors moments;
  for (const auto& [name, content] :
       {std::pair{"exp_avg.", Content::first_moment}, {"exp_avg_sq.", Content::second_moment}})
    for (MadeTensor& t :
         made_tensors(megatron_tensors(config, megatron_form(config)), content, std::string("optimizer.state.") + name))
      moments.push_back(t);
  EXPECT_EQ(MadeSource(moments).write(CheckpointFormat::weft, true), "");
  std::erase_if(moments, [](const MadeTensor& t) {
    return t.name == "optimizer.state.exp_avg_sq.decoder.layers.0.mlp.linear_fc2.weight";
  });
  const MadeSource source(moments);
  EXPECT_EQ(
      source.write(CheckpointFormat::weft, true),
      source.where() +
          ": the second moment of language.main.1.down is not in it, though other state of the optimizer is; take the "
          "weights alone with --no-load-optim");
  EXPECT_EQ(source.write(CheckpointFormat::weft, false), "");
  const RunCheckpoint written(source.out());
  for (const CheckpointTensor& tensor : written.tensors())
    EXPECT_TRUE(tensor.name.starts_with("weight/")) << tensor.name;
}

TEST(ConvertMegatronErrors, layers_that_differ_are_not_stacked) {
  const ModelFolder parent;
  const MadeModel source(small_config("[*-][*E]"), DType::f32, false);
  ConvertOptions options = to_folder(parent.file("out"));
  options.megatron_stacked_layers = true;
  const std::string message = message_of<UserError>([&] { write_megatron(source, options); });
  EXPECT_NE(message.find("the layers of the pattern [*-][*E] cannot be stacked"), std::string::npos) << message;
  EXPECT_EQ(listing(parent.path()), std::vector<std::string>{});  // nothing is left
}

}  // namespace
}  // namespace weft
