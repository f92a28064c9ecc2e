#include <algorithm>

#include <nlohmann/json.hpp>

#include "weft/checkpoint/hf_family.h"

namespace weft {
namespace {

// Layer L is sparse when decoder_sparse_step divides L + 1 and mlp_only_layers does not name it.
std::string read_pattern(const ConfigReader& config) {
  const std::int64_t layers = read_layers(config), step = config.integer_or("decoder_sparse_step", 1);
  const std::vector<std::int64_t> dense = config.integers_or_none("mlp_only_layers");
  const bool any = config.integer_or("num_local_experts", config.integer_or("num_experts", 1, 0), 0) > 0;
  std::string pattern;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const bool sparse = any && (layer + 1) % step == 0 && std::find(dense.begin(), dense.end(), layer) == dense.end();
    pattern += sparse ? "[*E]" : "[*-]";
  }
  return pattern;
}

ModelConfig read_qwen3_moe(const ConfigReader& config) {
  ModelConfig model = read_model_sizes(config, 1e-6);
  model.pattern = read_pattern(config);
  if (!config.mentions("num_key_value_heads")) config.refuse_missing("num_key_value_heads");
  model.attention = read_attention(config, 10'000);
  model.attention.qk_norm = true;
  // With a window, every layer has it: Hugging Face has not looked at max_window_layers since 4.53.
  if (config.flag_or("use_sliding_window", false)) {
    if (!config.mentions("sliding_window")) config.refuse_missing("sliding_window");
    model.attention.window = config.integer_or("sliding_window", 0);
  }
  if (model.pattern.find('-') != std::string::npos) {
    model.mlp.ffn = config.integer("intermediate_size");
    model.mlp.activation = read_gated_activation(config);
  }
  if (model.pattern.find('E') != std::string::npos) {
    model.experts = read_experts(config, "moe_intermediate_size", config.flag_or("norm_topk_prob", false));
  }
  return model;
}

void write_qwen3_moe(const ModelConfig& config, Json& json) {
  write_model_sizes(config, json);
  write_layer_pairs(config, json);
  write_attention(config.attention, json);
  json["attention_bias"] = config.attention.qkv_bias;
  json["use_sliding_window"] = config.attention.window > 0;
  json["sliding_window"] = config.attention.window > 0 ? Json(config.attention.window) : Json(nullptr);
  write_sparse_layers(config, json);
  json["num_experts"] = config.experts.experts;
  json["moe_intermediate_size"] = config.experts.ffn;
  write_router(config.experts.router, json);
  json["hidden_act"] = "silu";
  json["rms_norm_eps"] = config.norm_epsilon;
}

}  // namespace

HuggingFaceFamily qwen3_moe_family() {
  return {.name = "qwen3_moe",
          .architecture = "Qwen3MoeForCausalLM",
          .layers = "[*-] and [*E]",
          .config = read_qwen3_moe,
          .write = write_qwen3_moe,
          .layer_prefix = "model.layers.{L}.",
          .names = {transformer_names(), gated_mlp_names()},
          .experts = experts_names()};
}

}  // namespace weft
