// Families with recurrent layers: what their configs ask for, which elements of a packed tensor are which parameter, and
// the way back.
#include <limits>

#include <gtest/gtest.h>

#include "tests/checkpoint/in_doubles.h"
#include "tests/checkpoint/model_folder.h"
#include "weft/base/error.h"
#include "weft/checkpoint/hugging_face.h"
#include "weft/model/build_module.h"

namespace weft {
namespace {

std::string complaint(const std::string& golden, const Json& patch) {
  const ModelFolder folder(golden);
  folder.patch_config(patch);
  const std::string message = message_of<UserError>([&] { read_hugging_face_config(folder.path()); });
  return message.empty() ? "" : message.substr(folder.file("config.json").string().size() + 2);
}

ModelConfig patched(const std::string& golden, const Json& patch) {
  const ModelFolder folder(golden);
  folder.patch_config(patch);
  return read_hugging_face_config(folder.path()).config;
}

TEST(HuggingFaceRecurrent, Mamba2) {
  const ModelConfig c = read_hugging_face_config(golden_folder("mamba2")).config;
  EXPECT_EQ(c.pattern, "MM");
  EXPECT_EQ(c.mamba.heads, 4);
  EXPECT_EQ(c.mamba.head_dim, 16);
  EXPECT_EQ(c.mamba.groups, 2);
  EXPECT_EQ(c.mamba.state, 16);
  EXPECT_EQ(c.mamba.taps, 4);
  EXPECT_EQ(c.mamba.chunk, 8);
  EXPECT_TRUE(c.mamba.conv_bias);
  EXPECT_FALSE(c.mamba.norm_by_group);
  EXPECT_EQ(c.mamba.step_least, 0);
  EXPECT_EQ(c.mamba.step_most, std::numeric_limits<double>::infinity());
  EXPECT_EQ(patched("mamba2", {{"time_step_limit", {0.5, 2}}}).mamba.step_most, 2);
  EXPECT_EQ(complaint("mamba2", {{"use_bias", true}}),
            "'use_bias' is true: Weft supports projections of Mamba layers only without biases");
  EXPECT_EQ(complaint("mamba2", {{"expand", 3}}),
            "'expand' is 3: times hidden_size 32 it must be num_heads x head_dim = 64");
  EXPECT_EQ(complaint("mamba2", {{"n_groups", 3}}), "'n_groups' is 3: it must divide num_heads, 4");
  EXPECT_EQ(complaint("mamba2", {{"time_step_limit", {2, 0.5}}}),
            "'time_step_limit' is [2,0.5]: the first number must not exceed the second");
  EXPECT_EQ(complaint("mamba2", {{"hidden_act", "gelu"}}),
            "'hidden_act' is \"gelu\": Weft supports Mamba layers only with \"silu\"");
}

TEST(HuggingFaceRecurrent, NemotronH) {
  const ModelConfig c = read_hugging_face_config(golden_folder("nemotron_h")).config;
  EXPECT_EQ(c.pattern, "M-M*-");
  EXPECT_TRUE(c.mamba.norm_by_group);
  EXPECT_FALSE(c.attention.rope.enabled);
  EXPECT_EQ(c.attention.head_dim, 16);
  EXPECT_EQ(c.mlp.activation.kind, ActivationKind::squared_relu);
  const ModelConfig e = read_hugging_face_config(golden_folder("nemotron_h_moe")).config;
  EXPECT_EQ(e.pattern, "ME*E");
  EXPECT_TRUE(e.experts.expert_bias);
  EXPECT_EQ(e.experts.shared_ffn, 40);
  EXPECT_EQ(e.experts.router.scaling, 2.5);
  EXPECT_EQ(e.experts.latent, 0);
  EXPECT_EQ(patched("nemotron_h_moe", {{"moe_latent_size", 12}}).experts.latent, 12);
  EXPECT_EQ(patched("nemotron_h", {{"layers_block_type", nullptr}, {"hybrid_override_pattern", "M*-"}}).pattern, "M*-");
  EXPECT_EQ(complaint("nemotron_h", {{"layers_block_type", Json::array({"mamba", "rnn"})}}),
            "'layers_block_type' is [\"mamba\",\"rnn\"]: Weft does not support \"rnn\"");
  EXPECT_EQ(complaint("nemotron_h", {{"num_hidden_layers", 4}}), "'num_hidden_layers' is 4: the pattern has 5 layers");
  EXPECT_EQ(complaint("nemotron_h", {{"mlp_hidden_act", "silu"}}),
            "'mlp_hidden_act' is \"silu\": Weft supports MLPs of this family only with \"relu2\"");
}

TEST(HuggingFaceRecurrent, Qwen3Next) {
  const ModelConfig c = read_hugging_face_config(golden_folder("qwen3_next")).config;
  EXPECT_EQ(c.pattern, "[GE][GE][GE][*E]");
  EXPECT_TRUE(c.zero_centred_norms);
  EXPECT_TRUE(c.attention.output_gate);
  EXPECT_TRUE(c.attention.qk_norm);
  EXPECT_EQ(c.attention.rope.fraction, 0.5);
  EXPECT_EQ(c.delta_net.heads, 4);
  EXPECT_EQ(c.delta_net.key_heads, 2);
  EXPECT_EQ(c.delta_net.head_dim, 16);
  EXPECT_EQ(c.delta_net.key_dim, 16);
  EXPECT_EQ(c.delta_net.chunk, 64);
  EXPECT_EQ(c.experts.shared_ffn, 24);
  EXPECT_TRUE(c.experts.shared_gate);
  EXPECT_EQ(patched("qwen3_next", {{"layer_types", nullptr}, {"full_attention_interval", 2}}).pattern,
            "[GE][*E][GE][*E]");
  EXPECT_EQ(patched("qwen3_next", {{"mlp_only_layers", Json::array({1})}}).pattern, "[GE][G-][GE][*E]");
  EXPECT_EQ(complaint("qwen3_next", {{"layer_types", Json::array({"full_attention"})}}),
            "'layer_types' is [\"full_attention\"]: there are 4 layers (num_hidden_layers)");
  EXPECT_EQ(complaint("qwen3_next", {{"attention_bias", true}}),
            "'attention_bias' is true: Weft supports gated attention only without biases");
}

class Packed : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(HuggingFaceRecurrent, Packed,
                         ::testing::Values("mamba2", "nemotron_h", "nemotron_h_moe", "qwen3_next"),
                         [](const auto& golden) { return golden.param; });

// All parameters of the module are on disk, with their shapes; written again they make the same file.
TEST_P(Packed, ThereAndBackGivesTheSameFile) {
  const HuggingFaceWeights weights(golden_folder(GetParam()));
  std::map<ParameterIdentity, Shape> here, there;
  for (const DiskTensor& tensor : weights.model().tensors)
    for (const DiskPart& part : tensor.parts) here[part.identity] = part.parameter;
  for (const ParameterTensor& tensor : build_module(weights.model().config, {}).parameters)
    for (const ParameterPart& part : tensor.parts) there[part.identity] = part.shape;
  EXPECT_EQ(here, there);
  const ModelFolder out;
  write_tensors(out.file("model.safetensors"), weights.model().tensors, {},
                in_doubles([&](const ParameterIdentity& identity, double* values) {
                  weights.read(identity, there.at(identity), DType::f64, values);
                }));
  const RawTensors written = raw_tensors(out.file("model.safetensors")),
                   original = raw_tensors(golden_folder(GetParam()) / "model.safetensors");
  ASSERT_EQ(written.size(), original.size());
  for (const auto& [name, tensor] : original) {
    EXPECT_EQ(written.at(name).shape, tensor.shape) << name;
    EXPECT_TRUE(written.at(name).bytes == tensor.bytes) << name;
  }
}

}  // namespace
}  // namespace weft
