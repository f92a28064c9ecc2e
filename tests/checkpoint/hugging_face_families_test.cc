// Golden models whose tensors on disk are not parameters one by one: read and written, nothing is lost.
#include <gtest/gtest.h>

#include "tests/checkpoint/in_doubles.h"
#include "tests/checkpoint/model_folder.h"
#include "weft/base/error.h"
#include "weft/checkpoint/hugging_face.h"
#include "weft/model/build_module.h"

namespace weft {
namespace {

std::map<ParameterIdentity, Shape> parameters_of(const ModelConfig& config) {
  std::map<ParameterIdentity, Shape> parameters;
  for (const ParameterTensor& tensor : build_module(config, {}).parameters)
    for (const ParameterPart& part : tensor.parts) parameters[part.identity] = part.shape;
  return parameters;
}

class Family : public ::testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path folder() const { return golden_folder(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(HuggingFace, Family,
                         ::testing::Values("gpt_oss", "deepseek_v3", "deepseek_v3_b", "deepseek_v3_mtp",
                                           "deepseek_v32"),
                         [](const auto& golden) { return golden.param; });

TEST_P(Family, TheParametersAreThoseOfTheModule) {
  const HuggingFaceModel model = read_hugging_face(folder());
  std::map<ParameterIdentity, Shape> here;
  for (const DiskTensor& tensor : model.tensors)
    for (const DiskPart& part : tensor.parts) here[part.identity] = part.parameter;
  EXPECT_EQ(here, parameters_of(model.config));
}

TEST_P(Family, SavingGivesTheSameFile) {
  const HuggingFaceWeights weights(folder());
  std::map<ParameterIdentity, Shape> shapes = parameters_of(weights.model().config);
  const ModelFolder out;
  WriteOptions options;
  options.copies = true;
  write_tensors(out.file("model.safetensors"), weights.model().tensors, options,
                in_doubles([&](const ParameterIdentity& identity, double* values) {
                  weights.read(identity, shapes.at(identity), DType::f64, values);
                }));
  EXPECT_TRUE(read_file(out.file("model.safetensors")) == read_file(folder() / "model.safetensors"));
}

void expect_refused(const std::string& golden, const Json& patch, const std::string& text) {
  const ModelFolder folder(golden);
  folder.patch_config(patch);
  try {
    read_hugging_face_config(folder.path());
    FAIL() << "not refused: " << patch.dump();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

TEST(GptOss, WhatItsConfigMayNotSay) {
  expect_refused("gpt_oss", {{"swiglu_limit", 5.0}}, "'swiglu_limit' is 5.0");
  expect_refused("gpt_oss", {{"layer_types", {"full_attention"}}}, "one type per layer");
  expect_refused("gpt_oss", {{"layer_types", {"full_attention", "chunked_attention"}}}, "'layer_types'");
  expect_refused("gpt_oss", {{"hidden_act", "gelu"}}, "'hidden_act'");
}

TEST(GptOss, EverySecondLayerSlidesWithoutLayerTypes) {
  const ModelFolder folder("gpt_oss");
  folder.patch_config({{"layer_types", nullptr}, {"num_hidden_layers", 3}, {"sliding_window", 5}});
  const ModelConfig config = read_hugging_face_config(folder.path()).config;
  EXPECT_EQ(config.attention_of(0).window, 5);
  EXPECT_EQ(config.attention_of(2).window, 0);
  EXPECT_EQ(config.attention_of(4).window, 5);
}

TEST(DeepSeek, WhatItsConfigMayNotSay) {
  expect_refused("deepseek_v3", {{"attention_bias", true}}, "'attention_bias'");
  expect_refused("deepseek_v3", {{"num_key_value_heads", 2}}, "'num_key_value_heads'");
  expect_refused("deepseek_v3", {{"scoring_func", "softmax"}}, "'scoring_func'");
  expect_refused("deepseek_v3", {{"topk_method", "greedy"}}, "'topk_method'");
  expect_refused("deepseek_v3", {{"n_group", 3}}, "'n_group'");
  expect_refused("deepseek_v3", {{"n_group", 8}}, "needs two experts");
  expect_refused("deepseek_v3", {{"topk_group", 5}}, "'topk_group'");
  expect_refused("deepseek_v3", {{"qk_rope_head_dim", 7}}, "'qk_rope_head_dim'");
  expect_refused("deepseek_v3", {{"moe_layer_freq", 2}}, "'moe_layer_freq'");
}

TEST(DeepSeek, WhatASparseOneMayNotSay) {
  expect_refused("deepseek_v32", {{"index_head_dim", 4}}, "'index_head_dim'");
  expect_refused("deepseek_v32", {{"layer_types", {"full_attention"}}}, "'layer_types'");
  expect_refused("deepseek_v32", {{"mlp_layer_types", {"dense", "sparse"}}}, "'mlp_layer_types'");
  expect_refused("deepseek_v32", {{"mlp_layer_types", {"dense", "sparse", "thin"}}}, "'mlp_layer_types'");
}

TEST(DeepSeek, MtpIsThereWhereItsWeightsAre) {
  EXPECT_EQ(read_hugging_face(golden_folder("deepseek_v3")).config.pattern, "[+-][+E][+E]");
  EXPECT_EQ(read_hugging_face(golden_folder("deepseek_v3_mtp")).config.pattern, "[+-][+E][+E]/[+E]/[+E]");
  EXPECT_EQ(read_hugging_face_config(golden_folder("deepseek_v3_mtp")).config.pattern, "[+-][+E][+E]");
}

TEST(DeepSeek, CopiesMayBeLeftOutButMustAgree) {
  const ModelFolder folder("deepseek_v3_mtp");
  RawTensors tensors = raw_tensors(folder.file("model.safetensors"));
  tensors.erase("model.layers.3.embed_tokens.weight");
  tensors.erase("model.layers.4.shared_head.head.weight");
  write_raw(folder.file("model.safetensors"), tensors);
  EXPECT_NO_THROW(HuggingFaceWeights weights(folder.path()));
  tensors.at("model.layers.4.embed_tokens.weight").bytes[0] ^= 1;
  write_raw(folder.file("model.safetensors"), tensors);
  EXPECT_NE(message_of<UserError>([&] {
              HuggingFaceWeights weights(folder.path());
            }).find("'model.layers.4.embed_tokens.weight' must be a copy of 'model.embed_tokens.weight'"),
            std::string::npos);
}

TEST(DeepSeek, FusedExpertsAreReadToo) {
  const ModelFolder folder("deepseek_v3");
  RawTensors tensors = raw_tensors(folder.file("model.safetensors"));
  for (int layer : {1, 2}) {
    const std::string prefix = fmt::format("model.layers.{}.mlp.experts.", layer);
    RawTensor gate_up{StoredType::f32, {8, 48, 32}, ""}, down{StoredType::f32, {8, 32, 24}, ""};
    for (int e = 0; e < 8; ++e) {
      for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
        const std::string full = fmt::format("{}{}.{}.weight", prefix, e, name);
        (std::string(name) == "down_proj" ? down : gate_up).bytes += tensors.at(full).bytes;
        tensors.erase(full);
      }
    }
    tensors[prefix + "gate_up_proj"] = gate_up;
    tensors[prefix + "down_proj"] = down;
  }
  write_raw(folder.file("model.safetensors"), tensors);
  const HuggingFaceWeights fused(folder.path()), separate(golden_folder("deepseek_v3"));
  for (const auto& [identity, shape] : parameters_of(separate.model().config)) {
    std::vector<double> a(static_cast<std::size_t>(shape.elements())), b(a);
    fused.read(identity, shape, DType::f64, a.data());
    separate.read(identity, shape, DType::f64, b.data());
    EXPECT_EQ(a, b) << to_text(identity);
  }
}

}  // namespace
}  // namespace weft
