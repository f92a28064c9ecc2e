#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "weft/checkpoint/hf_family.h"

namespace weft {
namespace {

constexpr std::array<Role, 4> mamba_rows = {Role::x, Role::B, Role::C, Role::dt};
constexpr std::array<Role, 2> mamba_taps = {Role::conv_B, Role::conv_C};
constexpr std::array<Role, 2> mamba_tap_biases = {Role::conv_B_bias, Role::conv_C_bias};
constexpr std::array<NameRule, 12> mamba = {{
    {{}, "backbone.embeddings.weight", Role::embedding},
    {{}, "backbone.norm_f.weight", Role::final_norm},
    {{}, "lm_head.weight", Role::head},
    {Symbol::mamba, "norm.weight", Role::norm},
    {.symbol = Symbol::mamba, .name = "mixer.in_proj.weight", .role = Role::z, .rest = mamba_rows},
    {.symbol = Symbol::mamba,
     .name = "mixer.conv1d.weight",
     .role = Role::conv_x,
     .rest = mamba_taps,
     .depthwise = true},
    {.symbol = Symbol::mamba, .name = "mixer.conv1d.bias", .role = Role::conv_x_bias, .rest = mamba_tap_biases},
    {Symbol::mamba, "mixer.A_log", Role::A_log},
    {Symbol::mamba, "mixer.D", Role::D},
    {Symbol::mamba, "mixer.dt_bias", Role::dt_bias},
    {Symbol::mamba, "mixer.norm.weight", Role::mixer_norm},
    {Symbol::mamba, "mixer.out_proj.weight", Role::output},
}};

ModelConfig read_mamba2(const ConfigReader& config) {
  ModelConfig model =
      read_model_sizes(config, config.number_or("layer_norm_epsilon", 1e-5, ConfigReader::Sign::positive, 1));
  model.max_positions = 0;
  model.pattern = repeated_groups(read_layers(config), "M");
  MambaSpec& m = model.mamba;
  m.heads = config.integer_or("num_heads", 128);
  m.head_dim = config.integer_or("head_dim", 64);
  m.groups = config.integer_or("n_groups", 8);
  m.state = config.integer_or("state_size", 128);
  m.taps = config.integer_or("conv_kernel", 4);
  m.chunk = config.integer_or("chunk_size", 256);
  m.conv_bias = config.flag_or("use_conv_bias", true);
  m.norm_by_group = false;
  std::tie(m.step_least, m.step_most) = config.range_or("time_step_limit", {m.step_least, m.step_most});
  if (const double expand = config.number_or("expand", 2);
      expand * static_cast<double>(model.hidden) != static_cast<double>(m.width())) {
    config.refuse("expand",
                  fmt::format("times hidden_size {} it must be num_heads x head_dim = {}", model.hidden, m.width()));
  }
  if (m.heads % m.groups != 0) config.refuse("n_groups", fmt::format("it must divide num_heads, {}", m.heads));
  if (config.flag_or("use_bias", false))
    config.refuse("use_bias", "Weft supports projections of Mamba layers only without biases");
  if (const std::string act = config.text_or("hidden_act", "silu"); act != "silu" && act != "swish") {
    config.refuse("hidden_act", "Weft supports Mamba layers only with \"silu\"");
  }
  if (!config.flag_or("rms_norm", true))
    config.refuse("rms_norm", "Weft supports Mamba layers only with their gated norm");
  return model;
}

void write_mamba2(const ModelConfig& config, Json& json) {
  write_model_sizes(config, json);
  const MambaSpec& m = config.mamba;
  json["num_hidden_layers"] = std::max<std::size_t>(1, main_symbols(config).size());
  json["num_heads"] = m.heads;
  json["head_dim"] = m.head_dim;
  const double expand = static_cast<double>(m.width()) / static_cast<double>(std::max<std::int64_t>(1, config.hidden));
  json["expand"] = expand == std::floor(expand) ? Json(static_cast<std::int64_t>(expand)) : Json(expand);
  json["n_groups"] = m.groups;
  json["state_size"] = m.state;
  json["conv_kernel"] = m.taps;
  json["chunk_size"] = m.chunk;
  json["use_conv_bias"] = m.conv_bias;
  write_step_limits(m, json);
  json["hidden_act"] = "silu";
  json["rms_norm"] = true;
  json["layer_norm_epsilon"] = config.norm_epsilon;
}

}  // namespace

void write_step_limits(const MambaSpec& mamba, Json& json) {
  if (mamba.step_least == 0 && std::isinf(mamba.step_most)) return;  // the default, which JSON cannot express
  const Json most = std::isinf(mamba.step_most) ? Json{{"__float__", "Infinity"}} : Json(mamba.step_most);
  json["time_step_limit"] = Json::array({mamba.step_least, most});
}

NameTable mamba_names() { return mamba; }

HuggingFaceFamily mamba2_family() {
  return {.name = "mamba2",
          .architecture = "Mamba2ForCausalLM",
          .layers = "M",
          .config = read_mamba2,
          .write = write_mamba2,
          .layer_prefix = "backbone.layers.{L}.",
          .names = {mamba_names()}};
}

}  // namespace weft
