#include "tests/checkpoint/megatron/small_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/checkpoint/canonical_names.h"
#include "weft/checkpoint/stored_type.h"

namespace weft {

ModelConfig small_config(const std::string& pattern) {
  ModelConfig config;
  config.pattern = pattern;
  config.hidden = 8;
  config.vocabulary = 11;
  config.attention = {.heads = 4, .kv_heads = 2, .head_dim = 3, .qk_norm = true};
  config.mlp.ffn = 5;
  config.experts.experts = 3;
  config.experts.ffn = 6;
  config.experts.bias = config.experts.router_bias = true;
  config.experts.shared_ffn = 4;
  config.latent_attention.heads = 2;
  config.latent_attention.q_rank = 6;
  config.latent_attention.kv_rank = 4;
  config.latent_attention.head_dim = 3;
  config.latent_attention.rotary_dim = 2;
  config.latent_attention.value_dim = 3;
  config.mamba = {.heads = 4, .head_dim = 2, .groups = 2, .state = 3, .chunk = 4};
  config.delta_net = {.heads = 4, .key_heads = 2, .head_dim = 2, .key_dim = 3, .chunk = 4};
  return config;
}

std::map<ParameterIdentity, Shape> shapes_of(const ModelConfig& config) {
  std::map<ParameterIdentity, Shape> shapes;
  for (const DiskTensor& tensor : canonical_tensors(config, canonical_form(parse_pattern(config.pattern))))
    for (const DiskPart& part : tensor.parts) shapes[part.identity] = part.parameter;
  return shapes;
}

MadeTensors made_checkpoint(const std::vector<DiskTensor>& tensors) {
  MadeTensors all = made_tensors(tensors, Content::weight);
  for (MadeTensor& t : made_tensors(tensors, Content::first_moment, "optimizer.state.exp_avg.")) all.push_back(t);
  for (MadeTensor& t : made_tensors(tensors, Content::second_moment, "optimizer.state.exp_avg_sq.")) all.push_back(t);
  return all;
}

MadeTensors made_bf16_checkpoint(const std::vector<DiskTensor>& tensors, const std::string& kind) {
  MadeTensors all = made_checkpoint(tensors);
  for (std::size_t i = 0; i < tensors.size(); ++i) all[i].bf16 = true;
  for (MadeTensor& t : made_tensors(tensors, Content::weight, "optimizer.state." + kind + ".")) all.push_back(t);
  return all;
}

void expect_values(const CheckpointReader& checkpoint, Content content, const ModelConfig& config,
                   const ExpectedValues& expected) {
  for (const auto& [identity, shape] : shapes_of(config)) {
    ASSERT_TRUE(checkpoint.has(content, identity)) << to_text(identity);
    const bool padded = identity.role == Role::embedding || identity.role == Role::head;
    ParameterPart part;
    part.identity = identity;
    part.shape = shape;
    for (const bool middle : {false, true}) {
      part.box = Box::whole(shape);
      if (middle) {
        part.box.extent = {};
        for (int d = 0; d < shape.dims(); ++d) {
          const std::int64_t begin = shape[d] / 3, extent = std::max<std::int64_t>(1, shape[d] / 2);
          part.box.begin[static_cast<std::size_t>(d)] = begin;
          part.box.extent.append(std::min(extent, shape[d] - begin));
        }
      }
      HostTensor values(DType::f64, part.elements());
      checkpoint.read(content, part, values);
      each_number(part, values, [&](std::int64_t index, double number) {
        const bool is_padding = padded && index / shape[1] >= expected.rows;
        const float value = made_value(content, identity, index);
        EXPECT_EQ(number, is_padding         ? 0
                          : expected.rounded ? rounded_to_bf16(value)
                                             : value)
            << to_text(identity) << " " << index;
      });
    }
  }
}

void expect_all(const ModelFolder& folder, const ModelConfig& config) {
  const MegatronCheckpoint checkpoint(folder.path(), config, MasterWeights::where_wider);
  for (const Content content : {Content::weight, Content::first_moment, Content::second_moment})
    expect_values(checkpoint, content, config);
  EXPECT_THAT(checkpoint.others({}), testing::IsEmpty());
  EXPECT_EQ(checkpoint.optimizer_problem(), "");
  checkpoint.verify();
}

}  // namespace weft
