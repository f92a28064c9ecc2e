#include <algorithm>
#include <array>

#include "weft/base/error.h"
#include "weft/checkpoint/hf_family.h"

namespace weft {
namespace {

constexpr std::array<Role, 1> up = {Role::up};

constexpr std::array<NameRule, 14> transformer = {{
    {{}, "model.embed_tokens.weight", Role::embedding},
    {{}, "model.norm.weight", Role::final_norm},
    {{}, "lm_head.weight", Role::head},
    {Symbol::attention, "input_layernorm.weight", Role::norm},
    {Symbol::attention, "self_attn.q_proj.weight", Role::q},
    {Symbol::attention, "self_attn.k_proj.weight", Role::k},
    {Symbol::attention, "self_attn.v_proj.weight", Role::v},
    {Symbol::attention, "self_attn.q_proj.bias", Role::q_bias},
    {Symbol::attention, "self_attn.k_proj.bias", Role::k_bias},
    {Symbol::attention, "self_attn.v_proj.bias", Role::v_bias},
    {Symbol::attention, "self_attn.q_norm.weight", Role::q_norm},
    {Symbol::attention, "self_attn.k_norm.weight", Role::k_norm},
    {Symbol::attention, "self_attn.o_proj.weight", Role::output},
    {Symbol::attention, "self_attn.o_proj.bias", Role::output_bias},
}};

constexpr std::array<NameRule, 7> gated_mlp = {{
    {Symbol::mlp, "post_attention_layernorm.weight", Role::norm},
    {Symbol::mlp, "mlp.gate_proj.weight", Role::gate},
    {Symbol::mlp, "mlp.up_proj.weight", Role::up},
    {Symbol::mlp, "mlp.down_proj.weight", Role::down},
    {Symbol::mlp, "mlp.gate_proj.bias", Role::gate_bias},
    {Symbol::mlp, "mlp.up_proj.bias", Role::up_bias},
    {Symbol::mlp, "mlp.down_proj.bias", Role::down_bias},
}};

constexpr std::array<NameRule, 5> separate_experts = {{
    {Symbol::experts, "post_attention_layernorm.weight", Role::norm},
    {Symbol::experts, "mlp.gate.weight", Role::router},
    {Symbol::experts, "mlp.experts.{E}.gate_proj.weight", Role::gate},
    {Symbol::experts, "mlp.experts.{E}.up_proj.weight", Role::up},
    {Symbol::experts, "mlp.experts.{E}.down_proj.weight", Role::down},
}};

constexpr std::array<NameRule, 4> fused_experts = {{
    {Symbol::experts, "post_attention_layernorm.weight", Role::norm},
    {Symbol::experts, "mlp.gate.weight", Role::router},
    {Symbol::experts, "mlp.experts.gate_up_proj", Role::gate, up, Stacking::plain},
    {Symbol::experts, "mlp.experts.down_proj", Role::down, {}, Stacking::plain},
}};

std::int64_t first_mtp_layer(const HuggingFaceFamily& family, const Pattern& pattern) {
  return family.mtp->continues ? pattern.logical_layers : 0;
}

}  // namespace

NameTable transformer_names() { return transformer; }
NameTable gated_mlp_names() { return gated_mlp; }
ExpertsNames fused_experts_names() { return {ExpertsForm::fused, fused_experts}; }
std::vector<ExpertsNames> experts_names() { return {{ExpertsForm::separate, separate_experts}, fused_experts_names()}; }

std::string repeated_groups(std::int64_t layers, std::string_view group) {
  std::string pattern;
  for (std::int64_t i = 0; i < layers; ++i) pattern += group;
  return pattern;
}

bool has_mtp(const HuggingFaceFamily& family, const ModelConfig& config,
             const std::function<bool(const std::string& name)>& there) {
  if (!family.mtp) return false;
  const std::array<std::pair<std::string_view, std::int64_t>, 1> marks = {
      {{"{F}", first_mtp_layer(family, parse_pattern(config.pattern))}}};
  return std::any_of(family.mtp->names.begin(), family.mtp->names.end(),
                     [&](const NameRule& rule) { return there(with_numbers(rule.name, marks)); });
}

std::vector<DiskTensor> family_tensors(const HuggingFaceFamily& family, const ModelConfig& config,
                                       ExpertsForm experts) {
  std::vector<NameTable> tables = family.names;
  for (const ExpertsNames& spelling : family.experts) {
    if (spelling.form == experts) tables.push_back(spelling.names);
  }
  std::vector<DiskTensor> tensors;
  append_model(config, tables, tensors);
  const auto prefix_of = [](std::string_view prefix, std::int64_t layer) {
    const std::pair<std::string_view, std::int64_t> mark{"{L}", layer};
    return with_numbers(prefix, {&mark, 1});
  };
  const Pattern pattern = parse_pattern(config.pattern);
  for (const Segment& segment : pattern.segments) {
    for (const PatternLayer& layer : segment.layers)
      append_layer(config, layer, prefix_of(family.layer_prefix, layer.logical), 0, tables, tensors);
  }
  if (pattern.mtp_depths == 0) return tensors;
  WEFT_CHECK(family.mtp, "{} has no names for MTP", family.name);
  std::int64_t next = first_mtp_layer(family, pattern);
  for (int depth = 1; depth <= pattern.mtp_depths; ++depth) {
    const std::array<std::pair<std::string_view, std::int64_t>, 2> marks = {
        {{"{F}", next}, {"{T}", next + std::ssize(pattern.mtp_layers) - 1}}};
    append_depth(config, depth, family.mtp->names, marks, tensors);
    for (const PatternLayer& layer : pattern.mtp_layers)
      append_layer(config, layer, prefix_of(family.mtp->layer_prefix, next++), depth, tables, tensors);
  }
  return tensors;
}

}  // namespace weft
