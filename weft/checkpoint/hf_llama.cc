#include <nlohmann/json.hpp>

#include "weft/checkpoint/hf_family.h"

namespace weft {
namespace {

ModelConfig read_llama(const ConfigReader& config) {
  ModelConfig model = read_model_sizes(config, 1e-6);
  model.pattern = repeated_groups(read_layers(config), "[*-]");
  model.attention = read_attention(config, 10'000);
  model.mlp.ffn = config.integer("intermediate_size");
  model.mlp.activation = read_gated_activation(config);
  model.mlp.bias = config.flag_or("mlp_bias", false);
  return model;
}

void write_llama(const ModelConfig& config, Json& json) {
  write_model_sizes(config, json);
  write_layer_pairs(config, json);
  write_attention(config.attention, json);
  json["attention_bias"] = config.attention.qkv_bias;
  json["intermediate_size"] = config.mlp.ffn;
  json["mlp_bias"] = config.mlp.bias;
  json["hidden_act"] = "silu";
  json["rms_norm_eps"] = config.norm_epsilon;
}

}  // namespace

HuggingFaceFamily llama_family() {
  return {.name = "llama",
          .architecture = "LlamaForCausalLM",
          .layers = "[*-]",
          .config = read_llama,
          .write = write_llama,
          .layer_prefix = "model.layers.{L}.",
          .names = {transformer_names(), gated_mlp_names()},
          // Old files keep the frequencies of the rotary embedding; the config has them.
          .ignored = {".rotary_emb.inv_freq"}};
}

}  // namespace weft
