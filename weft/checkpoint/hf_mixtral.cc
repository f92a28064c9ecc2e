#include <array>

#include <nlohmann/json.hpp>

#include "weft/checkpoint/hf_family.h"

namespace weft {
namespace {

constexpr std::array<NameRule, 5> names = {{
    {Symbol::experts, "post_attention_layernorm.weight", Role::norm},
    {Symbol::experts, "block_sparse_moe.gate.weight", Role::router},
    {Symbol::experts, "block_sparse_moe.experts.{E}.w1.weight", Role::gate},
    {Symbol::experts, "block_sparse_moe.experts.{E}.w3.weight", Role::up},
    {Symbol::experts, "block_sparse_moe.experts.{E}.w2.weight", Role::down},
}};

ModelConfig read_mixtral(const ConfigReader& config) {
  ModelConfig model = read_model_sizes(config, 1e-5);
  model.pattern = repeated_groups(read_layers(config), "[*E]");
  if (!config.mentions("num_key_value_heads")) config.refuse_missing("num_key_value_heads");
  model.attention = read_attention(config, 1'000'000);
  model.attention.qkv_bias = model.attention.output_bias = false;  // whatever attention_bias is
  model.attention.window = config.integer_or("sliding_window", 0);
  model.experts = read_experts(config, "intermediate_size", true);
  if (config.number_or("router_jitter_noise", 0) != 0) {
    config.refuse("router_jitter_noise", "Weft trains without noise; set it to 0");
  }
  return model;
}

void write_mixtral(const ModelConfig& config, Json& json) {
  write_model_sizes(config, json);
  write_layer_pairs(config, json);
  write_attention(config.attention, json);
  json["sliding_window"] = config.attention.window > 0 ? Json(config.attention.window) : Json(nullptr);
  json["num_local_experts"] = config.experts.experts;
  json["num_experts_per_tok"] = config.experts.router.k;
  json["intermediate_size"] = config.experts.ffn;
  json["hidden_act"] = "silu";
  json["rms_norm_eps"] = config.norm_epsilon;
}

}  // namespace

HuggingFaceFamily mixtral_family() {
  return {.name = "mixtral",
          .architecture = "MixtralForCausalLM",
          .layers = "[*E]",
          .config = read_mixtral,
          .write = write_mixtral,
          .layer_prefix = "model.layers.{L}.",
          .names = {transformer_names()},
          .experts = {{ExpertsForm::separate, names}, fused_experts_names()},
          .ignored = {".rotary_emb.inv_freq"}};
}

}  // namespace weft
