// Gated delta nets and gated attention, each followed by experts with a gated shared one (or by an MLP).
#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "weft/checkpoint/hf_family.h"

namespace weft {
namespace {

constexpr std::array<Role, 1> gate_rows = {Role::output_gate};
constexpr std::array<Role, 3> delta_rows = {Role::k, Role::v, Role::z};
constexpr std::array<Role, 1> delta_gates = {Role::alpha};
constexpr std::array<Role, 2> delta_taps = {Role::conv_k, Role::conv_v};

constexpr std::array<NameRule, 22> names = {{
    {{}, "model.embed_tokens.weight", Role::embedding},
    {{}, "model.norm.weight", Role::final_norm},
    {{}, "lm_head.weight", Role::head},
    {Symbol::attention, "input_layernorm.weight", Role::norm},
    {.symbol = Symbol::attention,
     .name = "self_attn.q_proj.weight",
     .role = Role::q,
     .rest = gate_rows,
     .turns = Turns::heads},
    {Symbol::attention, "self_attn.k_proj.weight", Role::k},
    {Symbol::attention, "self_attn.v_proj.weight", Role::v},
    {Symbol::attention, "self_attn.q_norm.weight", Role::q_norm},
    {Symbol::attention, "self_attn.k_norm.weight", Role::k_norm},
    {Symbol::attention, "self_attn.o_proj.weight", Role::output},
    {Symbol::gated_delta, "input_layernorm.weight", Role::norm},
    {.symbol = Symbol::gated_delta,
     .name = "linear_attn.in_proj_qkvz.weight",
     .role = Role::q,
     .rest = delta_rows,
     .turns = Turns::heads},
    {.symbol = Symbol::gated_delta,
     .name = "linear_attn.in_proj_ba.weight",
     .role = Role::beta,
     .rest = delta_gates,
     .turns = Turns::heads},
    {.symbol = Symbol::gated_delta,
     .name = "linear_attn.conv1d.weight",
     .role = Role::conv_q,
     .rest = delta_taps,
     .depthwise = true},
    {Symbol::gated_delta, "linear_attn.A_log", Role::A_log},
    {Symbol::gated_delta, "linear_attn.dt_bias", Role::dt_bias},
    {Symbol::gated_delta, "linear_attn.norm.weight", Role::mixer_norm},
    {Symbol::gated_delta, "linear_attn.out_proj.weight", Role::output},
    {Symbol::experts, "mlp.shared_expert.gate_proj.weight", Role::shared_gate},
    {Symbol::experts, "mlp.shared_expert.up_proj.weight", Role::shared_up},
    {Symbol::experts, "mlp.shared_expert.down_proj.weight", Role::shared_down},
    {Symbol::experts, "mlp.shared_expert_gate.weight", Role::shared_expert_gate},
}};

// One depth: attention, with experts as the main layers have them. Hugging Face ignores these tensors.
constexpr std::array<NameRule, 4> mtp_names = {{
    {{}, "mtp.pre_fc_norm_embedding.weight", Role::mtp_embedding_norm},
    {{}, "mtp.pre_fc_norm_hidden.weight", Role::mtp_hidden_norm},
    {{}, "mtp.fc.weight", Role::mtp_projection},
    {{}, "mtp.norm.weight", Role::final_norm},
}};

std::string read_mtp_part(const ConfigReader& config) {
  return config.integer_or("num_local_experts", config.integer_or("num_experts", 512, 0), 0) > 0 ? "[*E]" : "[*-]";
}

std::int64_t read_mtp_depths(const ConfigReader& config) {
  const std::int64_t depths = config.integer_or("num_nextn_predict_layers", 1, 0);
  if (depths > 1)
    config.refuse("num_nextn_predict_layers",
                  "the depths would share one projection, which Weft does not support; at most 1");
  return depths;
}

// layer_types, or every full_attention_interval-th layer attends; experts as in qwen3_moe.
std::string read_pattern(const ConfigReader& config) {
  const std::int64_t layers = read_layers(config), step = config.integer_or("decoder_sparse_step", 1);
  const std::int64_t interval = config.integer_or("full_attention_interval", 4);
  const std::vector<std::string> kinds = config.texts_or_none("layer_types");
  if (!kinds.empty() && std::ssize(kinds) != layers) {
    config.refuse("layer_types", fmt::format("there are {} layers (num_hidden_layers)", layers));
  }
  const std::vector<std::int64_t> dense = config.integers_or_none("mlp_only_layers");
  const bool any = config.integer_or("num_local_experts", config.integer_or("num_experts", 512, 0), 0) > 0;
  std::string pattern;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    bool attends = (layer + 1) % interval == 0;
    if (!kinds.empty()) {
      const std::string& kind = kinds[static_cast<std::size_t>(layer)];
      attends = kind == "full_attention";
      if (!attends && kind != "linear_attention") {
        config.refuse("layer_types", fmt::format("Weft does not support \"{}\"", kind));
      }
    }
    const bool sparse = any && (layer + 1) % step == 0 && std::find(dense.begin(), dense.end(), layer) == dense.end();
    pattern += fmt::format("[{}{}]", attends ? '*' : 'G', sparse ? 'E' : '-');
  }
  return pattern;
}

ModelConfig read_qwen3_next(const ConfigReader& config) {
  ModelConfig model = read_model_sizes(config, 1e-6);
  model.zero_centred_norms = true;
  model.pattern = read_pattern(config);
  model.attention = read_attention(config, 10'000, 0.25);
  model.attention.qk_norm = model.attention.output_gate = true;
  if (model.attention.qkv_bias) config.refuse("attention_bias", "Weft supports gated attention only without biases");
  DeltaNetSpec& d = model.delta_net;
  d.heads = config.integer_or("linear_num_value_heads", 32);
  d.key_heads = config.integer_or("linear_num_key_heads", 16);
  d.head_dim = config.integer_or("linear_value_head_dim", 128);
  d.key_dim = config.integer_or("linear_key_head_dim", 128);
  d.taps = config.integer_or("linear_conv_kernel_dim", 4);
  if (d.heads % d.key_heads != 0) {
    config.refuse("linear_num_key_heads", fmt::format("it must divide linear_num_value_heads, {}", d.heads));
  }
  if (model.pattern.find('-') != std::string::npos) {
    model.mlp.ffn = config.integer("intermediate_size");
    model.mlp.activation = read_gated_activation(config);
  }
  if (model.pattern.find('E') != std::string::npos) {
    model.experts = read_experts(config, "moe_intermediate_size", config.flag_or("norm_topk_prob", true));
    model.experts.shared_ffn = config.integer("shared_expert_intermediate_size");
    model.experts.shared_gate = true;
  }
  return model;
}

void write_qwen3_next(const ModelConfig& config, Json& json) {
  write_model_sizes(config, json);
  write_layer_pairs(config, json);
  json["layer_types"] = Json::array();
  const std::string symbols = main_symbols(config);
  for (std::size_t i = 0; i < symbols.size(); i += 2)
    json["layer_types"].push_back(symbols[i] == '*' ? "full_attention" : "linear_attention");
  if (config.attention.heads > 0) write_attention(config.attention, json);
  json["attention_bias"] = false;
  // 0.25 where the config does not say.
  json["partial_rotary_factor"] = json["rope_parameters"]["partial_rotary_factor"] = config.attention.rope.fraction;
  const DeltaNetSpec& d = config.delta_net;
  if (d.heads > 0) {
    json["linear_num_value_heads"] = d.heads;
    json["linear_num_key_heads"] = d.key_heads;
    json["linear_value_head_dim"] = d.head_dim;
    json["linear_key_head_dim"] = d.key_dim;
    json["linear_conv_kernel_dim"] = d.taps;
  }
  write_sparse_layers(config, json);
  json["num_experts"] = config.experts.experts;
  json["moe_intermediate_size"] = config.experts.ffn;
  json["shared_expert_intermediate_size"] = config.experts.shared_ffn;
  write_router(config.experts.router, json);
  json["num_nextn_predict_layers"] = mtp_depths(config);
  json["hidden_act"] = "silu";
  json["rms_norm_eps"] = config.norm_epsilon;
}

}  // namespace

HuggingFaceFamily qwen3_next_family() {
  return {.name = "qwen3_next",
          .architecture = "Qwen3NextForCausalLM",
          .layers = "[G-], [GE], [*-] and [*E]",
          .config = read_qwen3_next,
          .write = write_qwen3_next,
          .layer_prefix = "model.layers.{L}.",
          .names = {names, gated_mlp_names()},
          .experts = experts_names(),
          .mtp = MtpNames{mtp_names, "mtp.layers.{L}.", false, read_mtp_part, read_mtp_depths}};
}

}  // namespace weft
