// Golden models: names, values, and the way back. The names here are written out by hand.
#include "weft/checkpoint/hugging_face.h"

#include <cstring>
#include <set>

#include <gtest/gtest.h>

#include "tests/checkpoint/in_doubles.h"
#include "tests/checkpoint/model_folder.h"
#include "weft/base/error.h"
#include "weft/model/build_module.h"

namespace weft {
namespace {

std::vector<float> read_floats(const HuggingFaceWeights& weights, const ParameterIdentity& identity,
                               const Shape& shape) {
  std::vector<float> values(static_cast<std::size_t>(shape.elements()));
  weights.read(identity, shape, DType::f32, values.data());
  return values;
}

// Every parameter of a model, as its module declares them: identity -> shape.
std::map<ParameterIdentity, Shape> parameters_of(const ModelConfig& config) {
  std::map<ParameterIdentity, Shape> parameters;
  for (const ParameterTensor& tensor : build_module(config, {}).parameters) {
    for (const ParameterPart& part : tensor.parts) parameters[part.identity] = part.shape;
  }
  return parameters;
}

// Which parameter a tensor of the golden models is.
ParameterIdentity identity_of(const std::string& name) {
  const auto is = [&](const char* text) { return name == text; };
  ParameterIdentity identity;
  if (is("model.embed_tokens.weight")) return identity.role = Role::embedding, identity;
  if (is("model.norm.weight")) return identity.role = Role::final_norm, identity;
  if (is("lm_head.weight")) return identity.role = Role::head, identity;
  int layer = -1, length = 0;
  EXPECT_EQ(std::sscanf(name.c_str(), "model.layers.%d.%n", &layer, &length), 1) << name;
  std::string rest = name.substr(static_cast<std::size_t>(length));
  static const std::map<std::string, Role> attention = {
      {"input_layernorm.weight", Role::norm},       {"self_attn.q_proj.weight", Role::q},
      {"self_attn.k_proj.weight", Role::k},         {"self_attn.v_proj.weight", Role::v},
      {"self_attn.o_proj.weight", Role::output},    {"self_attn.q_proj.bias", Role::q_bias},
      {"self_attn.k_proj.bias", Role::k_bias},      {"self_attn.v_proj.bias", Role::v_bias},
      {"self_attn.o_proj.bias", Role::output_bias}, {"self_attn.q_norm.weight", Role::q_norm},
      {"self_attn.k_norm.weight", Role::k_norm}};
  static const std::map<std::string, Role> mlp = {{"post_attention_layernorm.weight", Role::norm},
                                                  {"mlp.gate_proj.weight", Role::gate},
                                                  {"mlp.up_proj.weight", Role::up},
                                                  {"mlp.down_proj.weight", Role::down},
                                                  {"mlp.gate.weight", Role::router},
                                                  {"block_sparse_moe.gate.weight", Role::router},
                                                  {"w1.weight", Role::gate},
                                                  {"w3.weight", Role::up},
                                                  {"w2.weight", Role::down},
                                                  {"gate_proj.weight", Role::gate},
                                                  {"up_proj.weight", Role::up},
                                                  {"down_proj.weight", Role::down}};
  if (const auto at = attention.find(rest); at != attention.end()) return {0, 2 * layer, at->second};
  int expert = -1;
  if (const std::size_t at = rest.find("experts."); at != std::string::npos) {
    EXPECT_EQ(std::sscanf(rest.c_str() + at, "experts.%d.%n", &expert, &length), 1) << name;
    rest = rest.substr(at + static_cast<std::size_t>(length));
  }
  return {0, 2 * layer + 1, mlp.at(rest), expert};
}

class Golden : public ::testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path folder() const { return golden_folder(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(HuggingFace, Golden, ::testing::ValuesIn(golden_models),
                         [](const auto& golden) { return golden.param; });

TEST_P(Golden, EveryTensorIsTheParameterItsNameSays) {
  const HuggingFaceWeights weights(folder());
  const RawTensors raw = raw_tensors(folder() / "model.safetensors");
  ASSERT_EQ(weights.model().tensors.size(), raw.size());
  for (const DiskTensor& tensor : weights.model().tensors) {
    ASSERT_TRUE(raw.contains(tensor.name)) << tensor.name;
    const RawTensor& on_disk = raw.at(tensor.name);
    EXPECT_EQ(tensor.shape, on_disk.shape);
    ASSERT_EQ(tensor.parts.size(), 1u);
    EXPECT_EQ(to_text(tensor.parts[0].identity), to_text(identity_of(tensor.name))) << tensor.name;
    EXPECT_TRUE(weights.has(tensor.parts[0].identity));
    EXPECT_EQ(read_floats(weights, tensor.parts[0].identity, tensor.shape), floats_of(on_disk)) << tensor.name;
  }
}

TEST_P(Golden, TheParametersAreThoseOfTheModule) {
  const HuggingFaceModel model = read_hugging_face(folder());
  std::map<ParameterIdentity, Shape> here;
  for (const DiskTensor& tensor : model.tensors) {
    for (const DiskPart& part : tensor.parts) {
      EXPECT_TRUE(here.emplace(part.identity, part.parameter).second) << to_text(part.identity);
    }
  }
  const std::map<ParameterIdentity, Shape> there = parameters_of(model.config);
  EXPECT_EQ(here.size(), there.size());
  for (const auto& [identity, shape] : there) {
    ASSERT_TRUE(here.contains(identity)) << to_text(identity);
    EXPECT_EQ(here.at(identity), shape) << to_text(identity);
  }
}

TEST_P(Golden, ReadsInEveryPrecision) {
  const HuggingFaceWeights weights(folder());
  for (const DiskTensor& tensor : weights.model().tensors) {
    const std::vector<float> floats = read_floats(weights, tensor.parts[0].identity, tensor.shape);
    std::vector<double> doubles(floats.size());
    std::vector<bfloat16> brains(floats.size());
    weights.read(tensor.parts[0].identity, tensor.shape, DType::f64, doubles.data());
    weights.read(tensor.parts[0].identity, tensor.shape, DType::bf16, brains.data());
    for (std::size_t i = 0; i < floats.size(); ++i) {
      ASSERT_EQ(doubles[i], static_cast<double>(floats[i]));
      ASSERT_EQ(brains[i].bits, split_float(floats[i]).weight.bits);
    }
  }
}

TEST_P(Golden, SavingGivesTheSameFile) {
  const HuggingFaceWeights weights(folder());
  std::map<ParameterIdentity, Shape> shapes = parameters_of(weights.model().config);
  const ModelFolder out;
  write_tensors(out.file("model.safetensors"), weights.model().tensors, {},
                in_doubles([&](const ParameterIdentity& identity, double* values) {
                  weights.read(identity, shapes.at(identity), DType::f64, values);
                }));
  EXPECT_TRUE(read_file(out.file("model.safetensors")) == read_file(folder() / "model.safetensors"));
}

TEST_P(Golden, GradientsGoUnderTheNamesOfTheirWeights) {
  const HuggingFaceModel model = read_hugging_face(folder());
  const SafetensorsFile golden(folder() / "golden.safetensors");
  std::map<ParameterIdentity, std::string> names;
  for (const DiskTensor& tensor : model.tensors) names[tensor.parts[0].identity] = tensor.name;
  const TensorEntry& logits = golden.at("logits");
  const ModelFolder out;
  WriteOptions options;
  options.prefix = "grad.";
  options.type = StoredType::f64;
  write_tensors(out.file("x"), model.tensors, options,
                in_doubles([&](const ParameterIdentity& identity, double* values) {
                  read_as(golden.at("grad." + names.at(identity)), DType::f64, values);
                }),
                {tensor_in_memory("logits", DType::f64, logits.shape, logits.bytes.data())});
  RawTensors expected = raw_tensors(folder() / "golden.safetensors");
  for (const char* tokens : {"input_ids", "labels", "trajectory.tokens"}) expected.erase(tokens);
  const RawTensors written = raw_tensors(out.file("x"));
  ASSERT_EQ(written.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(written.contains(name)) << name;
    EXPECT_EQ(written.at(name).shape, tensor.shape);
    EXPECT_TRUE(written.at(name).bytes == tensor.bytes) << name;
  }
}

TEST(HuggingFace, OptionsThatNoGoldenHas) {
  // Biases of the MLP, of attention with query norms, and every mix of layers: as many parameters as the module has.
  const std::vector<std::pair<std::string, Json>> variants = {
      {"llama", {{"mlp_bias", true}, {"attention_bias", true}, {"num_key_value_heads", 4}}},
      {"qwen3_moe", {{"attention_bias", true}, {"decoder_sparse_step", 2}, {"num_hidden_layers", 5}}},
      {"qwen3_moe_b", {{"tie_word_embeddings", true}, {"mlp_only_layers", {0, 1, 2}}}},
      {"mixtral", {{"head_dim", 6}, {"num_local_experts", 1}, {"num_experts_per_tok", 1}}}};
  for (const auto& [golden, patch] : variants) {
    const ModelFolder folder(golden);
    folder.patch_config(patch);
    const HuggingFaceModel model = read_hugging_face_config(folder.path());
    std::map<ParameterIdentity, Shape> here;
    std::set<std::string> names;
    for (const DiskTensor& tensor : model.tensors) {
      names.insert(tensor.name);
      for (const DiskPart& part : tensor.parts) here[part.identity] = part.parameter;
    }
    EXPECT_EQ(here, parameters_of(model.config)) << golden;
    EXPECT_EQ(names.contains("model.layers.0.mlp.down_proj.bias"), golden == "llama");
    EXPECT_EQ(names.contains("lm_head.weight"), golden != "qwen3_moe_b");
  }
}

}  // namespace
}  // namespace weft
