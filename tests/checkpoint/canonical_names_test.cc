// Megatron's names for the parameters of golden models, and how they lie there.
#include "weft/checkpoint/canonical_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/checkpoint/model_folder.h"
#include "weft/base/error.h"
#include "weft/checkpoint/model_source.h"

namespace weft {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

// The tensors of a golden model as Megatron would have them.
RawTensors megatron_tensors(const std::string& golden) {
  const std::unique_ptr<ModelSource> source = open_hugging_face(golden_folder(golden));
  std::map<ParameterIdentity, Shape> shapes;
  const std::vector<DiskTensor> tensors = canonical_tensors(source->description().config);
  for (const DiskTensor& tensor : tensors)
    for (const DiskPart& part : tensor.parts) shapes[part.identity] = part.parameter;
  const ModelFolder work;
  write_tensors(work.file("tensors"), tensors, {},
                [&](const ParameterIdentity& identity, StoredType type, std::span<std::byte> out) {
                  source->read(Content::weight, identity, shapes.at(identity), type, out);
                });
  return raw_tensors(work.file("tensors"));
}

std::vector<std::string> names_of(const RawTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

TEST(CanonicalNames, AreMegatrons) {
  const RawTensors mixtral = megatron_tensors("mixtral");
  for (const char* name :
       {"embedding.word_embeddings.weight", "output_layer.weight", "decoder.final_layernorm.weight",
        "decoder.layers.1.self_attention.linear_qkv.layer_norm_weight",
        "decoder.layers.1.self_attention.linear_qkv.weight", "decoder.layers.1.self_attention.linear_proj.weight",
        "decoder.layers.1.pre_mlp_layernorm.weight", "decoder.layers.1.mlp.router.weight",
        "decoder.layers.1.mlp.experts.experts.linear_fc1.weight",
        "decoder.layers.1.mlp.experts.experts.linear_fc2.weight"})
    EXPECT_THAT(names_of(mixtral), Contains(name));
  EXPECT_EQ(mixtral.size(), 3u + 2u * 7u);
  EXPECT_EQ(mixtral.at("decoder.layers.0.mlp.experts.experts.linear_fc1.weight").shape, (Shape{4, 80, 32}));

  const RawTensors nemotron = megatron_tensors("nemotron_h");
  EXPECT_THAT(names_of(nemotron), Contains("decoder.final_norm.weight")) << "a flat pattern has the hybrid's name";
  for (const char* part : {"in_proj.weight.z", "in_proj.weight.x", "in_proj.weight.B", "in_proj.weight.C",
                           "in_proj.weight.dt", "conv1d.weight.x", "conv1d.bias.B", "A_log", "dt_bias", "D",
                           "norm.weight", "out_proj.weight", "in_proj.layer_norm_weight"})
    EXPECT_THAT(names_of(nemotron), Contains(fmt::format("decoder.layers.0.mixer.{}", part)));

  for (const char* name :
       {"decoder.layers.0.input_layernorm.weight", "decoder.layers.0.mlp.linear_fc1.layer_norm_weight",
        "decoder.layers.1.self_attention.linear_kv_up_proj.layer_norm_weight",
        "decoder.layers.1.mlp.router.expert_bias", "decoder.layers.2.mlp.shared_experts.linear_fc1.weight",
        "mtp.layers.0.enorm.weight", "mtp.layers.1.hnorm.weight", "mtp.layers.1.eh_proj.weight",
        "mtp.layers.1.final_layernorm.weight",
        "mtp.layers.1.mtp_model_layer.layers.0.mlp.experts.experts.linear_fc2.weight"})
    EXPECT_THAT(names_of(megatron_tensors("deepseek_v3_mtp")), Contains(name));

  for (const char* name : {"self_attention.q_layernorm.weight", "self_attention.kv_layernorm.weight",
                           "self_attention.core_attention.indexer.k_norm.bias"})
    EXPECT_THAT(names_of(megatron_tensors("deepseek_v32")), Contains(fmt::format("decoder.layers.0.{}", name)));
  EXPECT_THAT(names_of(megatron_tensors("gpt_oss")),
              Contains("decoder.layers.0.self_attention.core_attention.softmax_offset"));
}

// Rows [first, first + count) of a matrix.
std::string rows(const RawTensor& tensor, std::int64_t first, std::int64_t count) {
  const std::size_t row = tensor.bytes.size() / static_cast<std::size_t>(tensor.shape[0]);
  return tensor.bytes.substr(static_cast<std::size_t>(first) * row, static_cast<std::size_t>(count) * row);
}

TEST(CanonicalNames, QueriesKeysAndValuesLieGroupByGroup) {
  for (const std::string model : {"llama", "qwen3_next"}) {
    const AttentionSpec a = read_hugging_face(golden_folder(model)).config.attention;
    const int layer = model == "llama" ? 1 : 3;  // the fourth attends
    const RawTensors theirs = raw_tensors(golden_folder(model) / "model.safetensors"), ours = megatron_tensors(model);
    const std::string prefix = fmt::format("model.layers.{}.self_attn.", layer);
    ASSERT_TRUE(theirs.contains(prefix + "q_proj.weight")) << model;
    const RawTensor &q = theirs.at(prefix + "q_proj.weight"), &k = theirs.at(prefix + "k_proj.weight"),
                    &v = theirs.at(prefix + "v_proj.weight");
    const std::int64_t d = a.head_dim, each = a.heads / a.kv_heads;
    std::string expected;
    for (std::int64_t group = 0; group < a.kv_heads; ++group) {
      std::string queries, gates;
      for (std::int64_t head = group * each; head < (group + 1) * each; ++head) {
        if (a.output_gate) {  // there: head by head, queries before gates
          queries += rows(q, 2 * head * d, d);
          gates += rows(q, (2 * head + 1) * d, d);
        } else {
          queries += rows(q, head * d, d);
        }
      }
      expected += queries + gates + rows(k, group * d, d) + rows(v, group * d, d);
    }
    EXPECT_TRUE(ours.at(fmt::format("decoder.layers.{}.self_attention.linear_qkv.weight", layer)).bytes == expected)
        << model;
  }
}

TEST(CanonicalNames, GateAboveUpExpertByExpert) {
  const RawTensors theirs = raw_tensors(golden_folder("qwen3_moe") / "model.safetensors"),
                   ours = megatron_tensors("qwen3_moe");
  const RawTensor& fc1 = ours.at("decoder.layers.0.mlp.experts.experts.linear_fc1.weight");
  std::string expected;
  for (std::int64_t e = 0; e < fc1.shape[0]; ++e)
    for (const char* name : {"gate_proj", "up_proj"})
      expected += theirs.at(fmt::format("model.layers.0.mlp.experts.{}.{}.weight", e, name)).bytes;
  EXPECT_TRUE(fc1.bytes == expected);
}

TEST(CanonicalNames, TwoSymbolsOfAKindInAGroupAreRefused) {
  ModelConfig config;
  config.pattern = "[MM]";
  config.hidden = 8;
  config.vocabulary = 16;
  config.mamba.heads = 2;
  config.mamba.head_dim = 8;
  config.mamba.state = 4;
  EXPECT_THAT(message_of<UserError>([&] { canonical_tensors(config); }),
              HasSubstr("the pattern [MM] has two symbols in one group that would both be"));
}

}  // namespace
}  // namespace weft
