#include <array>

#include <nlohmann/json.hpp>

#include "weft/checkpoint/hf_family.h"

namespace weft {
namespace {

// Experts' matrices are kept as [in, out]; gate and up alternate, column by column.
constexpr std::array<Role, 1> up = {Role::up}, up_bias = {Role::up_bias};
constexpr std::array<NameRule, 7> expert_names = {{
    {Symbol::experts, "post_attention_layernorm.weight", Role::norm},
    {Symbol::experts, "mlp.router.weight", Role::router},
    {Symbol::experts, "mlp.router.bias", Role::router_bias},
    {Symbol::experts, "mlp.experts.gate_up_proj", Role::gate, up, Stacking::transposed},
    {Symbol::experts, "mlp.experts.gate_up_proj_bias", Role::gate_bias, up_bias, Stacking::transposed},
    {Symbol::experts, "mlp.experts.down_proj", Role::down, {}, Stacking::transposed},
    {Symbol::experts, "mlp.experts.down_proj_bias", Role::down_bias, {}, Stacking::transposed},
}};

constexpr std::array<NameRule, 1> names = {{{Symbol::attention, "self_attn.sinks", Role::sinks}}};

// Which layers have the window: layer_types, or every second one from the first.
std::vector<bool> read_sliding(const ConfigReader& config, std::int64_t layers) {
  std::vector<bool> sliding;
  const std::vector<std::string> types = config.texts_or_none("layer_types");
  if (!config.has("layer_types")) {
    for (std::int64_t i = 0; i < layers; ++i) sliding.push_back(i % 2 == 0);
    return sliding;
  }
  if (static_cast<std::int64_t>(types.size()) != layers)
    config.refuse("layer_types", "it must name one type per layer (num_hidden_layers)");
  for (const std::string& type : types) {
    if (type != "sliding_attention" && type != "full_attention")
      config.refuse("layer_types", "this family has sliding_attention and full_attention");
    sliding.push_back(type == "sliding_attention");
  }
  return sliding;
}

ModelConfig read_gpt_oss(const ConfigReader& config) {
  ModelConfig model = read_model_sizes(config, 1e-5);
  const std::int64_t layers = read_layers(config);
  model.pattern = repeated_groups(layers, "[*E]");
  model.attention = read_attention(config, 150'000);
  model.attention.qkv_bias = model.attention.output_bias = config.flag_or("attention_bias", true);
  model.attention.sinks = true;
  const std::vector<bool> sliding = read_sliding(config, layers);
  AttentionSpec windowed = model.attention;
  windowed.window = config.integer_or("sliding_window", 128);
  constexpr int symbols = 2;  // of a layer
  for (std::size_t i = 0; i < sliding.size(); ++i)
    if (sliding[i]) model.attention_at[static_cast<int>(i) * symbols] = windowed;
  model.experts = read_experts(config, "intermediate_size", false);
  model.experts.router.choose_first = true;
  model.experts.bias = model.experts.router_bias = true;
  // The model has these numbers in its code.
  constexpr double limit = 7, alpha = 1.702, offset = 1;
  if (config.number_or("swiglu_limit", limit) != limit)
    config.refuse("swiglu_limit", "models of this family clamp at 7, whatever the config says");
  model.experts.activation = {ActivationKind::quick_geglu, limit, alpha, offset};
  return model;
}

void write_gpt_oss(const ModelConfig& config, Json& json) {
  write_model_sizes(config, json);
  write_layer_pairs(config, json);
  const AttentionSpec& attention = first_attention(config);
  write_attention(attention, json);
  json["attention_bias"] = attention.qkv_bias;
  std::int64_t window = 0;
  json["layer_types"] = Json::array();
  const std::string symbols = main_symbols(config);
  for (std::size_t i = 0; i < symbols.size(); i += 2) {
    const std::int64_t here = config.attention_of(static_cast<int>(i)).window;
    json["layer_types"].push_back(here > 0 ? "sliding_attention" : "full_attention");
    if (here > 0) window = here;
  }
  if (window > 0) json["sliding_window"] = window;
  json["num_local_experts"] = config.experts.experts;
  json["num_experts_per_tok"] = config.experts.router.k;
  json["intermediate_size"] = config.experts.ffn;
  json["hidden_act"] = "silu";
  json["rms_norm_eps"] = config.norm_epsilon;
}

}  // namespace

HuggingFaceFamily gpt_oss_family() {
  return {.name = "gpt_oss",
          .architecture = "GptOssForCausalLM",
          .layers = "[*E]",
          .config = read_gpt_oss,
          .write = write_gpt_oss,
          .layer_prefix = "model.layers.{L}.",
          .names = {transformer_names(), names},
          .experts = {{ExpertsForm::fused, expert_names}}};
}

}  // namespace weft
