#include "weft/checkpoint/canonical_names.h"

#include <algorithm>
#include <array>
#include <set>
#include <span>

#include "weft/base/error.h"
#include "weft/checkpoint/name_rules.h"

namespace weft {
namespace {

constexpr std::array<NameRule, 2> model_names = {{
    {{}, "embedding.word_embeddings.weight", Role::embedding},
    {{}, "output_layer.weight", Role::head},
}};

// Group by group of query heads: its queries, their gates, its key, its value.
constexpr std::array<Role, 3> qkv_rows = {Role::output_gate, Role::k, Role::v};
constexpr std::array<Role, 2> qkv_biases = {Role::k_bias, Role::v_bias};
constexpr std::array<NameRule, 8> attention_names = {{
    {Symbol::attention, "self_attention.linear_qkv.layer_norm_weight", Role::norm},
    {.symbol = Symbol::attention,
     .name = "self_attention.linear_qkv.weight",
     .role = Role::q,
     .rest = qkv_rows,
     .turns = Turns::groups},
    {.symbol = Symbol::attention,
     .name = "self_attention.linear_qkv.bias",
     .role = Role::q_bias,
     .rest = qkv_biases,
     .turns = Turns::groups},
    {Symbol::attention, "self_attention.q_layernorm.weight", Role::q_norm},
    {Symbol::attention, "self_attention.k_layernorm.weight", Role::k_norm},
    {Symbol::attention, "self_attention.core_attention.softmax_offset", Role::sinks},
    {Symbol::attention, "self_attention.linear_proj.weight", Role::output},
    {Symbol::attention, "self_attention.linear_proj.bias", Role::output_bias},
}};

// The same for both kinds of latent attention but for the latents' norms.
constexpr std::array<Role, 1> value_rows = {Role::v_up};
template <Symbol symbol>
constexpr std::array<NameRule, 7> latent_names = {{
    {symbol, "input_layernorm.weight", Role::norm},
    {symbol, "self_attention.linear_q_proj.weight", Role::q},
    {symbol, "self_attention.linear_q_down_proj.weight", Role::q_down},
    {symbol, "self_attention.linear_q_up_proj.weight", Role::q_up},
    {symbol, "self_attention.linear_kv_down_proj.weight", Role::kv_down},
    {.symbol = symbol,
     .name = "self_attention.linear_kv_up_proj.weight",
     .role = Role::k_up,
     .rest = value_rows,
     .turns = Turns::heads},
    {symbol, "self_attention.linear_proj.weight", Role::output},
}};
constexpr std::array<NameRule, 2> latent_norm_names = {{
    {Symbol::latent_attention, "self_attention.linear_q_up_proj.layer_norm_weight", Role::q_latent_norm},
    {Symbol::latent_attention, "self_attention.linear_kv_up_proj.layer_norm_weight", Role::kv_latent_norm},
}};
constexpr std::array<NameRule, 7> sparse_names = {{
    {Symbol::sparse_attention, "self_attention.q_layernorm.weight", Role::q_latent_norm},
    {Symbol::sparse_attention, "self_attention.kv_layernorm.weight", Role::kv_latent_norm},
    {Symbol::sparse_attention, "self_attention.core_attention.indexer.linear_wq_b.weight", Role::indexer_q},
    {Symbol::sparse_attention, "self_attention.core_attention.indexer.linear_wk.weight", Role::indexer_k},
    {Symbol::sparse_attention, "self_attention.core_attention.indexer.k_norm.weight", Role::indexer_norm},
    {Symbol::sparse_attention, "self_attention.core_attention.indexer.k_norm.bias", Role::indexer_norm_bias},
    {Symbol::sparse_attention, "self_attention.core_attention.indexer.linear_weights_proj.weight",
     Role::indexer_weights},
}};

// Where it is gated: the gate's rows first.
constexpr std::array<Role, 1> up = {Role::up}, up_bias = {Role::up_bias}, shared_up = {Role::shared_up};
constexpr std::array<NameRule, 5> mlp_names = {{
    {Symbol::mlp, "mlp.linear_fc1.layer_norm_weight", Role::norm},
    {Symbol::mlp, "mlp.linear_fc1.weight", Role::gate, up},
    {Symbol::mlp, "mlp.linear_fc1.bias", Role::gate_bias, up_bias},
    {Symbol::mlp, "mlp.linear_fc2.weight", Role::down},
    {Symbol::mlp, "mlp.linear_fc2.bias", Role::down_bias},
}};

constexpr std::array<NameRule, 13> expert_names = {{
    {Symbol::experts, "pre_mlp_layernorm.weight", Role::norm},
    {Symbol::experts, "mlp.router.weight", Role::router},
    {Symbol::experts, "mlp.router.bias", Role::router_bias},
    {Symbol::experts, "mlp.router.expert_bias", Role::expert_bias},
    {Symbol::experts, "mlp.fc1_latent_proj.weight", Role::latent_down},
    {Symbol::experts, "mlp.fc2_latent_proj.weight", Role::latent_up},
    {Symbol::experts, "mlp.experts.experts.linear_fc1.weight", Role::gate, up, Stacking::plain},
    {Symbol::experts, "mlp.experts.experts.linear_fc1.bias", Role::gate_bias, up_bias, Stacking::plain},
    {Symbol::experts, "mlp.experts.experts.linear_fc2.weight", Role::down, {}, Stacking::plain},
    {Symbol::experts, "mlp.experts.experts.linear_fc2.bias", Role::down_bias, {}, Stacking::plain},
    {Symbol::experts, "mlp.shared_experts.linear_fc1.weight", Role::shared_gate, shared_up},
    {Symbol::experts, "mlp.shared_experts.linear_fc2.weight", Role::shared_down},
    {Symbol::experts, "mlp.shared_experts.gate_weight", Role::shared_expert_gate},
}};

constexpr NameRule taps(Symbol symbol, std::string_view name, Role role) {
  return {.symbol = symbol, .name = name, .role = role, .depthwise = true};
}

constexpr std::array<NameRule, 17> mamba_names = {{
    {Symbol::mamba, "mixer.in_proj.layer_norm_weight", Role::norm},
    {Symbol::mamba, "mixer.in_proj.weight.z", Role::z},
    {Symbol::mamba, "mixer.in_proj.weight.x", Role::x},
    {Symbol::mamba, "mixer.in_proj.weight.B", Role::B},
    {Symbol::mamba, "mixer.in_proj.weight.C", Role::C},
    {Symbol::mamba, "mixer.in_proj.weight.dt", Role::dt},
    taps(Symbol::mamba, "mixer.conv1d.weight.x", Role::conv_x),
    taps(Symbol::mamba, "mixer.conv1d.weight.B", Role::conv_B),
    taps(Symbol::mamba, "mixer.conv1d.weight.C", Role::conv_C),
    {Symbol::mamba, "mixer.conv1d.bias.x", Role::conv_x_bias},
    {Symbol::mamba, "mixer.conv1d.bias.B", Role::conv_B_bias},
    {Symbol::mamba, "mixer.conv1d.bias.C", Role::conv_C_bias},
    {Symbol::mamba, "mixer.A_log", Role::A_log},
    {Symbol::mamba, "mixer.dt_bias", Role::dt_bias},
    {Symbol::mamba, "mixer.D", Role::D},
    {Symbol::mamba, "mixer.norm.weight", Role::mixer_norm},
    {Symbol::mamba, "mixer.out_proj.weight", Role::output},
}};

constexpr std::array<NameRule, 14> delta_net_names = {{
    {Symbol::gated_delta, "self_attention.in_proj.layer_norm_weight", Role::norm},
    {Symbol::gated_delta, "self_attention.in_proj.weight.query", Role::q},
    {Symbol::gated_delta, "self_attention.in_proj.weight.key", Role::k},
    {Symbol::gated_delta, "self_attention.in_proj.weight.value", Role::v},
    {Symbol::gated_delta, "self_attention.in_proj.weight.z", Role::z},
    {Symbol::gated_delta, "self_attention.in_proj.weight.beta", Role::beta},
    {Symbol::gated_delta, "self_attention.in_proj.weight.alpha", Role::alpha},
    taps(Symbol::gated_delta, "self_attention.conv1d.weight.query", Role::conv_q),
    taps(Symbol::gated_delta, "self_attention.conv1d.weight.key", Role::conv_k),
    taps(Symbol::gated_delta, "self_attention.conv1d.weight.value", Role::conv_v),
    {Symbol::gated_delta, "self_attention.A_log", Role::A_log},
    {Symbol::gated_delta, "self_attention.dt_bias", Role::dt_bias},
    {Symbol::gated_delta, "self_attention.out_norm.weight", Role::mixer_norm},
    {Symbol::gated_delta, "self_attention.out_proj.weight", Role::output},
}};

constexpr std::array<NameRule, 4> mtp_names = {{
    {{}, "mtp.layers.{D}.enorm.weight", Role::mtp_embedding_norm},
    {{}, "mtp.layers.{D}.hnorm.weight", Role::mtp_hidden_norm},
    {{}, "mtp.layers.{D}.eh_proj.weight", Role::mtp_projection},
    {{}, "mtp.layers.{D}.final_layernorm.weight", Role::final_norm},
}};

// One layer of a single symbol for each of a part's symbols.
std::vector<PatternLayer> single_layers(std::span<const PatternLayer> items) {
  std::vector<PatternLayer> layers;
  for (const PatternLayer& item : items) {
    for (std::size_t i = 0; i < item.symbols.size(); ++i) {
      PatternLayer layer;
      layer.symbols = {item.symbols[i]};
      layer.physical = {item.physical[i]};
      layer.logical = item.logical;
      layers.push_back(layer);
    }
  }
  return layers;
}

std::vector<int> item_numbers(const std::vector<PatternLayer>& layers) {
  std::vector<int> numbers;
  for (const PatternLayer& layer : layers) numbers.push_back(layer.logical);
  return numbers;
}

}  // namespace

std::vector<PatternLayer> main_layers(const Pattern& pattern) {
  std::vector<PatternLayer> items;
  for (const Segment& segment : pattern.segments)
    items.insert(items.end(), segment.layers.begin(), segment.layers.end());
  return single_layers(items);
}

std::vector<PatternLayer> depth_layers(const Pattern& pattern) { return single_layers(pattern.mtp_layers); }

CanonicalForm canonical_form(const Pattern& pattern) {
  CanonicalForm form;
  form.layers = item_numbers(main_layers(pattern));
  form.depth_layers = item_numbers(depth_layers(pattern));
  form.final_norm = final_norm_of_flat;
  for (const Segment& segment : pattern.segments)
    for (const PatternLayer& layer : segment.layers)
      if (layer.grouped) form.final_norm = final_norm_of_groups;
  return form;
}

std::vector<DiskTensor> canonical_tensors(const ModelConfig& config, const CanonicalForm& form) {
  const Pattern pattern = parse_pattern(config.pattern);
  const std::array<NameRule, 1> final_norm = {{{{}, form.final_norm, Role::final_norm}}};
  const std::array<NameTable, 2> model = {model_names, final_norm};
  const std::array<NameTable, 9> layers = {attention_names,   latent_names<Symbol::latent_attention>,
                                           latent_norm_names, latent_names<Symbol::sparse_attention>,
                                           sparse_names,      mlp_names,
                                           expert_names,      mamba_names,
                                           delta_net_names};
  std::vector<DiskTensor> tensors;
  append_model(config, model, tensors);
  const std::vector<PatternLayer> main = main_layers(pattern), depth = depth_layers(pattern);
  WEFT_CHECK(main.size() == form.layers.size() && depth.size() == form.depth_layers.size(),
             "{} and {} numbers for the layers of {}", form.layers.size(), form.depth_layers.size(), config.pattern);
  for (std::size_t i = 0; i < main.size(); ++i)
    append_layer(config, main[i], fmt::format("decoder.layers.{}.", form.layers[i]), 0, layers, tensors);
  for (int d = 1; d <= pattern.mtp_depths; ++d) {
    const std::array<std::pair<std::string_view, std::int64_t>, 1> marks = {{{"{D}", d - 1}}};
    append_depth(config, d, mtp_names, marks, tensors);
    for (std::size_t i = 0; i < depth.size(); ++i) {
      const std::string prefix = form.transformer_depths ? fmt::format("mtp.layers.{}.transformer_layer.", d - 1)
                                                         : fmt::format("mtp.layers.{}.mtp_model_layer.layers.{}.",
                                                                       d - 1, form.depth_layers[i]);
      append_layer(config, depth[i], prefix, d, layers, tensors);
    }
  }
  return tensors;
}

std::optional<std::string> first_collision(const std::vector<DiskTensor>& tensors) {
  std::set<std::string_view> names;
  for (const DiskTensor& tensor : tensors)
    if (!names.insert(tensor.name).second) return tensor.name;
  return std::nullopt;
}

std::vector<DiskTensor> canonical_tensors(const ModelConfig& config) {
  std::vector<DiskTensor> tensors = canonical_tensors(config, canonical_form(parse_pattern(config.pattern)));
  if (const std::optional<std::string> name = first_collision(tensors))
    throw UserError(
        "the pattern {} has two symbols in one group that would both be '{}' in a checkpoint; write them outside of "
        "the group",
        config.pattern, *name);
  return tensors;
}

}  // namespace weft
