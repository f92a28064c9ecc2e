// MTP of families whose golden models have none: made from the tensors of a main layer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/checkpoint/model_folder.h"
#include "weft/base/error.h"
#include "weft/checkpoint/canonical_names.h"
#include "weft/checkpoint/convert.h"
#include "weft/model/build_module.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

// Copies the tensors of one layer under another prefix.
void copy_layer(RawTensors& tensors, const std::string& from, const std::string& to) {
  RawTensors copies;
  for (const auto& [name, tensor] : tensors)
    if (name.starts_with(from)) copies[to + name.substr(from.size())] = tensor;
  ASSERT_FALSE(copies.empty()) << from;
  tensors.merge(copies);
}

RawTensor filled(const Shape& shape, float first) {
  std::vector<float> values(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i) / 1024;
  return raw_of(shape, values);
}

void expect_parameters_of_the_module(const std::filesystem::path& folder) {
  const HuggingFaceModel model = read_hugging_face(folder);
  std::map<ParameterIdentity, Shape> here, canonical, there;
  for (const DiskTensor& tensor : model.tensors)
    for (const DiskPart& part : tensor.parts) here[part.identity] = part.parameter;
  for (const DiskTensor& tensor : canonical_tensors(model.config))
    for (const DiskPart& part : tensor.parts) canonical[part.identity] = part.parameter;
  for (const ParameterTensor& tensor : build_module(model.config, {}).parameters)
    for (const ParameterPart& part : tensor.parts) there[part.identity] = part.shape;
  EXPECT_EQ(here, there);
  EXPECT_EQ(canonical, there);
}

void expect_value(const HuggingFaceWeights& weights, const ParameterIdentity& identity, const Shape& shape,
                  const RawTensor& expected) {
  std::vector<float> values(static_cast<std::size_t>(shape.elements()));
  weights.read(identity, shape, DType::f32, values.data());
  EXPECT_EQ(values, floats_of(expected)) << to_text(identity);
}

void expect_round_trip(const ModelFolder& model) {
  const ModelFolder work;
  ConvertOptions options;
  options.in = model.path();
  options.out = work.file("weft");
  convert_checkpoint(options);
  options = {CheckpointFormat::weft, CheckpointFormat::hugging_face, work.file("weft"), work.file("back")};
  convert_checkpoint(options);
  EXPECT_TRUE(read_file(work.file("back/model.safetensors")) == read_file(model.file("model.safetensors")));
}

TEST(Qwen3Next, MtpIsOneGatedAttentionWithExperts) {
  const ModelFolder model("qwen3_next");
  const ModelConfig main = read_hugging_face(model.path()).config;
  ASSERT_TRUE(main.pattern.ends_with("[*E]")) << main.pattern;
  const int attends = parse_pattern(main.pattern).logical_layers - 1;
  const std::int64_t h = main.hidden;
  RawTensors tensors = raw_tensors(model.file("model.safetensors"));
  copy_layer(tensors, fmt::format("model.layers.{}.", attends), "mtp.layers.0.");
  tensors["mtp.pre_fc_norm_embedding.weight"] = filled({h}, 1);
  tensors["mtp.pre_fc_norm_hidden.weight"] = filled({h}, 2);
  tensors["mtp.norm.weight"] = filled({h}, 3);
  tensors["mtp.fc.weight"] = filled({h, 2 * h}, 4);
  write_raw(model.file("model.safetensors"), tensors);
  const HuggingFaceWeights weights(model.path());
  EXPECT_EQ(weights.model().config.pattern, main.pattern + "/[*E]");
  expect_value(weights, {1, -1, Role::mtp_embedding_norm}, {h}, tensors["mtp.pre_fc_norm_embedding.weight"]);
  expect_value(weights, {1, -1, Role::mtp_hidden_norm}, {h}, tensors["mtp.pre_fc_norm_hidden.weight"]);
  expect_value(weights, {1, -1, Role::final_norm}, {h}, tensors["mtp.norm.weight"]);
  expect_value(weights, {1, -1, Role::mtp_projection}, {h, 2 * h}, tensors["mtp.fc.weight"]);
  expect_parameters_of_the_module(model.path());
  expect_round_trip(model);

  model.patch_config({{"num_nextn_predict_layers", 2}});
  EXPECT_THAT(message_of<UserError>([&] { read_hugging_face(model.path()); }),
              HasSubstr("'num_nextn_predict_layers' is 2: the depths would share one projection"));
}

TEST(NemotronH, MtpDepthsAreLayersOfTheirOwn) {
  const ModelFolder model("nemotron_h_moe");
  const ModelConfig main = read_hugging_face(model.path()).config;
  const std::size_t attends = main.pattern.find('*'), experts = main.pattern.find('E');
  ASSERT_NE(attends, std::string::npos);
  const std::int64_t h = main.hidden;
  RawTensors tensors = raw_tensors(model.file("model.safetensors"));
  for (int depth : {0, 1}) {
    const std::string first = fmt::format("mtp.layers.{}.", 2 * depth),
                      last = fmt::format("mtp.layers.{}.", 2 * depth + 1);
    copy_layer(tensors, fmt::format("backbone.layers.{}.", attends), first);
    copy_layer(tensors, fmt::format("backbone.layers.{}.", experts), last);
    tensors[first + "enorm.weight"] = filled({h}, 1.0f + static_cast<float>(depth));
    tensors[first + "hnorm.weight"] = filled({h}, 3.0f + static_cast<float>(depth));
    tensors[first + "eh_proj.weight"] = filled({h, 2 * h}, 5.0f + static_cast<float>(depth));
    tensors[last + "final_layernorm.weight"] = filled({h}, 7.0f + static_cast<float>(depth));
  }
  write_raw(model.file("model.safetensors"), tensors);
  model.patch_config({{"num_nextn_predict_layers", 2}, {"mtp_layers_block_type", nullptr}});
  EXPECT_THAT(message_of<UserError>([&] { read_hugging_face(model.path()); }),
              HasSubstr("lacks 'mtp_hybrid_override_pattern'"));
  model.patch_config({{"mtp_layers_block_type", {"attention", "moe"}}});
  EXPECT_EQ(read_hugging_face(model.path()).config.pattern, main.pattern + "/*E/*E");
  model.patch_config({{"mtp_layers_block_type", nullptr}, {"mtp_hybrid_override_pattern", "*E"}});
  const HuggingFaceWeights weights(model.path());
  EXPECT_EQ(weights.model().config.pattern, main.pattern + "/*E/*E");
  expect_value(weights, {2, -1, Role::mtp_hidden_norm}, {h}, tensors["mtp.layers.2.hnorm.weight"]);
  expect_value(weights, {2, -1, Role::final_norm}, {h}, tensors["mtp.layers.3.final_layernorm.weight"]);
  expect_value(weights, {2, 1, Role::norm}, {h}, tensors["mtp.layers.3.norm.weight"]);
  expect_parameters_of_the_module(model.path());
  expect_round_trip(model);
}

TEST(CanonicalNames, NumbersAreThoseOfTheItems) {
  ModelConfig config;
  config.hidden = 16;
  config.vocabulary = 8;
  config.attention = {.heads = 2, .kv_heads = 1, .head_dim = 8};
  config.mamba.heads = 2;
  config.mamba.head_dim = config.mamba.state = 8;
  config.mlp.ffn = 8;
  const auto names = [&](const char* pattern) {
    config.pattern = pattern;
    std::vector<std::string> result;
    for (const DiskTensor& tensor : canonical_tensors(config)) result.push_back(tensor.name);
    return result;
  };
  EXPECT_THAT(names("M[M*]-"),
              ::testing::IsSupersetOf({"decoder.layers.0.mixer.in_proj.weight.z", "decoder.layers.1.mixer.A_log",
                                       "decoder.layers.1.self_attention.linear_qkv.weight",
                                       "decoder.layers.2.mlp.linear_fc1.weight", "decoder.final_layernorm.weight"}));
  EXPECT_THAT(names("MM*-"),
              ::testing::IsSupersetOf({"decoder.layers.3.mlp.linear_fc2.weight", "decoder.final_norm.weight"}));
  EXPECT_THAT(names("[*-]|[*-]"), ::testing::Contains("decoder.layers.1.self_attention.linear_proj.weight"));
  EXPECT_THAT(message_of<UserError>([&] { names("[MM]"); }), HasSubstr("[MM] has two symbols in one group"));
}

}  // namespace
}  // namespace weft
