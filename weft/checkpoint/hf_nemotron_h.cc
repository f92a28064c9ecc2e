// One norm and one mixer per layer: Mamba-2, attention without rotary embedding, MLP or experts with squared relu.
#include <algorithm>
#include <array>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "weft/checkpoint/hf_family.h"

namespace weft {
namespace {

constexpr std::array<NameRule, 21> names = {{
    {Symbol::attention, "norm.weight", Role::norm},
    {Symbol::attention, "mixer.q_proj.weight", Role::q},
    {Symbol::attention, "mixer.k_proj.weight", Role::k},
    {Symbol::attention, "mixer.v_proj.weight", Role::v},
    {Symbol::attention, "mixer.o_proj.weight", Role::output},
    {Symbol::attention, "mixer.q_proj.bias", Role::q_bias},
    {Symbol::attention, "mixer.k_proj.bias", Role::k_bias},
    {Symbol::attention, "mixer.v_proj.bias", Role::v_bias},
    {Symbol::attention, "mixer.o_proj.bias", Role::output_bias},
    {Symbol::mlp, "norm.weight", Role::norm},
    {Symbol::mlp, "mixer.up_proj.weight", Role::up},
    {Symbol::mlp, "mixer.down_proj.weight", Role::down},
    {Symbol::mlp, "mixer.up_proj.bias", Role::up_bias},
    {Symbol::mlp, "mixer.down_proj.bias", Role::down_bias},
    {Symbol::experts, "norm.weight", Role::norm},
    {Symbol::experts, "mixer.gate.weight", Role::router},
    {Symbol::experts, "mixer.gate.e_score_correction_bias", Role::expert_bias},
    {Symbol::experts, "mixer.fc1_latent_proj.weight", Role::latent_down},
    {Symbol::experts, "mixer.fc2_latent_proj.weight", Role::latent_up},
    {Symbol::experts, "mixer.shared_experts.up_proj.weight", Role::shared_up},
    {Symbol::experts, "mixer.shared_experts.down_proj.weight", Role::shared_down},
}};

constexpr std::array<NameRule, 2> separate_experts = {{
    {Symbol::experts, "mixer.experts.{E}.up_proj.weight", Role::up},
    {Symbol::experts, "mixer.experts.{E}.down_proj.weight", Role::down},
}};
constexpr std::array<NameRule, 2> fused_experts = {{
    {Symbol::experts, "mixer.experts.up_proj", Role::up, {}, Stacking::plain},
    {Symbol::experts, "mixer.experts.down_proj", Role::down, {}, Stacking::plain},
}};

// A depth's own tensors are named after the first and the last of its layers. Hugging Face ignores them.
constexpr std::array<NameRule, 4> mtp_names = {{
    {{}, "mtp.layers.{F}.enorm.weight", Role::mtp_embedding_norm},
    {{}, "mtp.layers.{F}.hnorm.weight", Role::mtp_hidden_norm},
    {{}, "mtp.layers.{F}.eh_proj.weight", Role::mtp_projection},
    {{}, "mtp.layers.{T}.final_layernorm.weight", Role::final_norm},
}};

// A pattern as text, or the list of kinds that newer configs have.
std::string read_pattern(const ConfigReader& config, const char* text_key, const char* kinds_key) {
  std::string pattern;
  const std::vector<std::string> kinds = config.texts_or_none(kinds_key);
  for (const std::string& kind : kinds) {
    if (kind == "mamba" || kind == "linear_attention") {
      pattern += 'M';
    } else if (kind == "attention" || kind == "full_attention") {
      pattern += '*';
    } else if (kind == "mlp") {
      pattern += '-';
    } else if (kind == "moe") {
      pattern += 'E';
    } else {
      config.refuse(kinds_key, fmt::format("Weft does not support \"{}\"", kind));
    }
  }
  if (kinds.empty()) {
    pattern = config.text(text_key);
    if (pattern.find_first_not_of("M*-E") != std::string::npos) {
      config.refuse(text_key, "its symbols are M, *, - and E");
    }
  }
  return pattern;
}

std::string read_main_pattern(const ConfigReader& config) {
  const std::string pattern = read_pattern(config, "hybrid_override_pattern", "layers_block_type");
  if (config.has("num_hidden_layers") && read_layers(config) != std::ssize(pattern)) {
    config.refuse("num_hidden_layers", fmt::format("the pattern has {} layers", pattern.size()));
  }
  return pattern;
}

std::string read_mtp_part(const ConfigReader& config) {
  return read_pattern(config, "mtp_hybrid_override_pattern", "mtp_layers_block_type");
}

std::int64_t read_mtp_depths(const ConfigReader& config) {
  return config.integer_or("num_nextn_predict_layers", 1, 0, ConfigReader::max_depths);
}

void read_mamba(const ConfigReader& config, MambaSpec& m) {
  m.heads = config.integer_or("mamba_num_heads", 128);
  m.head_dim = config.integer_or("mamba_head_dim", 64);
  m.groups = config.integer_or("n_groups", 8);
  m.state = config.integer_or("ssm_state_size", 128);
  m.taps = config.integer_or("conv_kernel", 4);
  m.chunk = config.integer_or("chunk_size", 128);
  m.conv_bias = config.flag_or("use_conv_bias", true);
  std::tie(m.step_least, m.step_most) = config.range_or("time_step_limit", {m.step_least, m.step_most});
  if (m.heads % m.groups != 0) config.refuse("n_groups", fmt::format("it must divide mamba_num_heads, {}", m.heads));
  for (const char* key : {"mamba_proj_bias", "use_bias"}) {
    if (config.flag_or(key, false)) config.refuse(key, "Weft supports projections of Mamba layers only without biases");
  }
  if (config.text_or("mamba_hidden_act", "silu") != "silu") {
    config.refuse("mamba_hidden_act", "Weft supports Mamba layers only with \"silu\"");
  }
}

void read_experts(const ConfigReader& config, ExpertsSpec& e) {
  e.experts = config.integer("n_routed_experts", 1, ConfigReader::max_experts);
  e.ffn = config.integer("moe_intermediate_size");
  e.activation.kind = ActivationKind::squared_relu;
  e.shared_ffn = config.integer("moe_shared_expert_intermediate_size");
  e.expert_bias = true;
  e.router.score = RouterSpec::Score::sigmoid;
  e.router.choose_first = false;
  e.router.k = config.integer("num_experts_per_tok");
  e.router.normalise = config.flag_or("norm_topk_prob", true);
  e.router.scaling = config.number_or("routed_scaling_factor", 1, ConfigReader::Sign::positive);
  e.router.groups = config.integer_or("n_group", 1);
  e.router.keep_groups = config.integer_or("topk_group", 1);
  e.router.group_best = 2;
  if (config.integer_or("n_shared_experts", 1) != 1) {
    config.refuse("n_shared_experts", "Weft supports exactly one shared expert here");
  }
  e.latent = config.integer_or("moe_latent_size", 0);
  if (config.flag_or("mlp_bias", false)) config.refuse("mlp_bias", "Weft supports these experts only without biases");
}

ModelConfig read_nemotron_h(const ConfigReader& config) {
  ModelConfig model =
      read_model_sizes(config, config.number_or("layer_norm_epsilon", 1e-5, ConfigReader::Sign::positive, 1));
  model.pattern = read_main_pattern(config);
  read_mamba(config, model.mamba);
  AttentionSpec& a = model.attention;
  a.heads = config.integer("num_attention_heads");
  a.kv_heads = config.integer_or("num_key_value_heads", a.heads);
  a.head_dim = config.integer_or("head_dim", config.integer_or("attention_head_dim", 128));  // the older key
  a.qkv_bias = a.output_bias = config.flag_or("attention_bias", false);
  a.rope.enabled = false;
  if (config.has("sliding_window")) config.refuse("sliding_window", "attention of this family sees all keys");
  model.mlp.ffn = config.integer_or("intermediate_size", 0);
  model.mlp.activation.kind = ActivationKind::squared_relu;
  model.mlp.bias = config.flag_or("mlp_bias", false);
  if (config.text_or("mlp_hidden_act", "relu2") != "relu2") {
    config.refuse("mlp_hidden_act", "Weft supports MLPs of this family only with \"relu2\"");
  }
  if (config.number_or("hidden_dropout", 0) != 0) {
    config.refuse("hidden_dropout", "Weft trains without dropout; set it to 0");
  }
  if (model.pattern.find('E') != std::string::npos) read_experts(config, model.experts);
  return model;
}

Json kinds_of(const std::string& symbols) {
  Json kinds = Json::array();
  for (const char symbol : symbols)
    kinds.push_back(symbol == 'M' ? "mamba" : symbol == '*' ? "attention" : symbol == 'E' ? "moe" : "mlp");
  return kinds;
}

void write_nemotron_h(const ModelConfig& config, Json& json) {
  write_model_sizes(config, json);
  const std::string symbols = main_symbols(config);
  json["num_hidden_layers"] = symbols.size();
  json["hybrid_override_pattern"] = symbols;
  json["layers_block_type"] = kinds_of(symbols);
  const Pattern pattern = parse_pattern(config.pattern);
  json["num_nextn_predict_layers"] = pattern.mtp_depths;
  if (pattern.mtp_depths > 0) {
    std::string part;
    for (const PatternLayer& layer : pattern.mtp_layers) part += layer.letters();
    json["mtp_hybrid_override_pattern"] = part;
    json["mtp_layers_block_type"] = kinds_of(part);
  }
  const MambaSpec& m = config.mamba;
  if (m.heads > 0) {
    json["mamba_num_heads"] = m.heads;
    json["mamba_head_dim"] = m.head_dim;
    json["n_groups"] = m.groups;
    json["ssm_state_size"] = m.state;
    json["conv_kernel"] = m.taps;
    json["chunk_size"] = m.chunk;
    json["use_conv_bias"] = m.conv_bias;
    write_step_limits(m, json);
  }
  const AttentionSpec& a = config.attention;
  json["num_attention_heads"] = std::max<std::int64_t>(1, a.heads);
  json["num_key_value_heads"] = std::max<std::int64_t>(1, a.kv_heads);
  json["head_dim"] = std::max<std::int64_t>(1, a.head_dim);
  json["attention_bias"] = a.qkv_bias;
  if (config.mlp.ffn > 0) json["intermediate_size"] = config.mlp.ffn;
  json["mlp_bias"] = config.mlp.bias && symbols.find('-') != std::string::npos;
  json["mlp_hidden_act"] = "relu2";
  const ExpertsSpec& e = config.experts;
  if (e.experts > 0) {
    json["n_routed_experts"] = e.experts;
    json["moe_intermediate_size"] = e.ffn;
    json["moe_shared_expert_intermediate_size"] = e.shared_ffn;
    json["n_shared_experts"] = 1;
    json["moe_latent_size"] = e.latent > 0 ? Json(e.latent) : Json(nullptr);
    write_router(e.router, json);
    json["routed_scaling_factor"] = e.router.scaling;
    json["n_group"] = e.router.groups;
    json["topk_group"] = e.router.keep_groups;
  }
  json["layer_norm_epsilon"] = config.norm_epsilon;
}

}  // namespace

HuggingFaceFamily nemotron_h_family() {
  return {.name = "nemotron_h",
          .architecture = "NemotronHForCausalLM",
          .layers = "M, *, - and E, one per layer",
          .config = read_nemotron_h,
          .write = write_nemotron_h,
          .layer_prefix = "backbone.layers.{L}.",
          .names = {mamba_names(), names},
          .experts = {{ExpertsForm::separate, separate_experts}, {ExpertsForm::fused, fused_experts}},
          .mtp = MtpNames{mtp_names, "mtp.layers.{L}.", false, read_mtp_part, read_mtp_depths}};
}

}  // namespace weft
