#include <algorithm>
#include <array>

#include "weft/base/error.h"
#include "weft/checkpoint/hf_family.h"

namespace weft {
namespace {

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
    {Symbol::experts, "mlp.experts.gate_up_proj", Role::gate, Role::up, Stacking::plain},
    {Symbol::experts, "mlp.experts.down_proj", Role::down, {}, Stacking::plain},
}};

std::string replaced(std::string_view text, std::string_view mark, std::int64_t number) {
  std::string result(text);
  const std::size_t at = result.find(mark);
  if (at != std::string::npos) result.replace(at, mark.size(), std::to_string(number));
  return result;
}

std::optional<Shape> shape_if(bool there, const Shape& shape) { return there ? std::optional(shape) : std::nullopt; }

std::optional<Shape> model_shape(const ModelConfig& config, Role role) {
  switch (role) {
    case Role::mtp_embedding_norm:
    case Role::mtp_hidden_norm:
      return Shape{config.hidden};
    case Role::mtp_projection:
      return Shape{config.hidden, 2 * config.hidden};
    case Role::embedding:
      return Shape{config.embedding_rows(), config.hidden};
    case Role::final_norm:
      return Shape{config.hidden};
    case Role::head:
      return shape_if(!config.tied_embeddings, {config.embedding_rows(), config.hidden});
    default:
      return {};
  }
}

std::optional<Shape> attention_shape(const AttentionSpec& spec, std::int64_t hidden, Role role) {
  const std::int64_t q = spec.heads * spec.head_dim, kv = spec.kv_heads * spec.head_dim;
  switch (role) {
    case Role::norm:
      return Shape{hidden};
    case Role::q:
      return Shape{q, hidden};
    case Role::k:
    case Role::v:
      return Shape{kv, hidden};
    case Role::output:
      return Shape{hidden, q};
    case Role::q_bias:
      return shape_if(spec.qkv_bias, {q});
    case Role::k_bias:
    case Role::v_bias:
      return shape_if(spec.qkv_bias, {kv});
    case Role::output_bias:
      return shape_if(spec.output_bias, {hidden});
    case Role::output_gate:
      return shape_if(spec.output_gate, {q, hidden});
    case Role::q_norm:
    case Role::k_norm:
      return shape_if(spec.qk_norm, {spec.head_dim});
    case Role::sinks:
      return shape_if(spec.sinks, {spec.heads});
    default:
      return {};
  }
}

std::optional<Shape> latent_shape(const LatentAttentionSpec& spec, std::int64_t hidden, Role role) {
  const std::int64_t q = spec.heads * (spec.head_dim + spec.rotary_dim);
  const bool low_rank = spec.q_rank > 0;
  switch (role) {
    case Role::norm:
      return Shape{hidden};
    case Role::q:
      return shape_if(!low_rank, {q, hidden});
    case Role::q_down:
      return shape_if(low_rank, {spec.q_rank, hidden});
    case Role::q_latent_norm:
      return shape_if(low_rank, {spec.q_rank});
    case Role::q_up:
      return shape_if(low_rank, {q, spec.q_rank});
    case Role::kv_down:
      return Shape{spec.kv_rank + spec.rotary_dim, hidden};
    case Role::kv_latent_norm:
      return Shape{spec.kv_rank};
    case Role::k_up:
      return Shape{spec.heads * spec.head_dim, spec.kv_rank};
    case Role::v_up:
      return Shape{spec.heads * spec.value_dim, spec.kv_rank};
    case Role::output:
      return Shape{hidden, spec.heads * spec.value_dim};
    case Role::indexer_q:
      return Shape{spec.indexer.heads * spec.indexer.dim, spec.q_rank};
    case Role::indexer_k:
      return Shape{spec.indexer.dim, hidden};
    case Role::indexer_weights:
      return Shape{spec.indexer.heads, hidden};
    case Role::indexer_norm:
    case Role::indexer_norm_bias:
      return Shape{spec.indexer.dim};
    default:
      return {};
  }
}

// Of an MLP, and of one expert.
std::optional<Shape> mlp_shape(const MlpSpec& spec, std::int64_t hidden, Role role) {
  const bool gated = spec.activation.gated();
  switch (role) {
    case Role::norm:
      return Shape{hidden};
    case Role::gate:
      return shape_if(gated, {spec.ffn, hidden});
    case Role::up:
      return Shape{spec.ffn, hidden};
    case Role::down:
      return Shape{hidden, spec.ffn};
    case Role::gate_bias:
      return shape_if(gated && spec.bias, {spec.ffn});
    case Role::up_bias:
      return shape_if(spec.bias, {spec.ffn});
    case Role::down_bias:
      return shape_if(spec.bias, {hidden});
    default:
      return {};
  }
}

// What a role of the shared expert is to an MLP.
std::optional<Role> shared_role(Role role) {
  switch (role) {
    case Role::shared_gate:
      return Role::gate;
    case Role::shared_up:
      return Role::up;
    case Role::shared_down:
      return Role::down;
    default:
      return {};
  }
}

// The logical shape of a parameter; nothing where the model has no such parameter.
std::optional<Shape> shape_of(const ModelConfig& config, std::optional<Symbol> symbol, int physical, Role role) {
  if (!symbol) return model_shape(config, role);
  switch (*symbol) {
    case Symbol::attention:
      return attention_shape(config.attention_of(physical), config.hidden, role);
    case Symbol::latent_attention:
    case Symbol::sparse_attention:
      return latent_shape(config.latent_attention, config.hidden, role);
    case Symbol::mamba:
      return mamba_shape(config.mamba, config.hidden, role);
    case Symbol::gated_delta:
      return delta_net_shape(config.delta_net, config.hidden, role);
    case Symbol::mlp:
      return mlp_shape(config.mlp, config.hidden, role);
    case Symbol::experts:
      if (role == Role::expert_bias) return shape_if(config.experts.expert_bias, {config.experts.experts});
      if (const std::optional<Role> of = shared_role(role))
        return config.experts.shared_ffn == 0
                   ? std::nullopt
                   : mlp_shape({config.experts.shared_ffn, config.experts.activation, false}, config.hidden, *of);
      if (role == Role::shared_expert_gate) return shape_if(config.experts.shared_gate, {1, config.hidden});
      if (role == Role::router) return Shape{config.experts.experts, config.hidden};
      if (role == Role::router_bias) return shape_if(config.experts.router_bias, {config.experts.experts});
      if (role == Role::latent_down) return shape_if(config.experts.latent > 0, {config.experts.latent, config.hidden});
      if (role == Role::latent_up) return shape_if(config.experts.latent > 0, {config.hidden, config.experts.latent});
      if (role == Role::norm) return Shape{config.hidden};
      return mlp_shape({config.experts.ffn, config.experts.activation, config.experts.bias},
                       config.experts.latent > 0 ? config.experts.latent : config.hidden, role);
    default:
      WEFT_CHECK(false, "no shapes of '{}' yet", letter(*symbol));
  }
}

// Rows of two parameters in turns, as many of each as a head has.
DiskTensor headwise_tensor(std::string name, ParameterIdentity identity, const NameRule& rule, std::int64_t heads,
                           const Shape& first, const Shape& second) {
  DiskTensor tensor;
  tensor.name = std::move(name);
  tensor.shape = {first[0] + second[0], first[1]};
  std::int64_t row = 0;
  for (std::int64_t head = 0; head < heads; ++head) {
    for (const auto& [role, shape] : {std::pair(rule.role, first), std::pair(*rule.below, second)}) {
      DiskPart part;
      part.identity = identity;
      part.identity.role = role;
      part.parameter = shape;
      const std::int64_t rows = shape[0] / heads;
      part.offset = head * rows * shape[1];
      part.extent = {rows, shape[1]};
      part.begin = {row, 0};
      row += rows;
      if (rows > 0) tensor.parts.push_back(part);
    }
  }
  return tensor;
}

// All experts in one tensor [experts, in, out] or [experts, out] of biases, the columns of two parameters in turns.
DiskTensor transposed_tensor(std::string name, ParameterIdentity identity, const NameRule& rule, std::int64_t experts,
                             const Shape& first) {
  const std::int64_t turns = rule.below ? 2 : 1;
  const bool matrix = first.dims() > 1;
  DiskTensor tensor;
  tensor.name = std::move(name);
  tensor.shape.append(experts);
  if (matrix) tensor.shape.append(first[1]);
  tensor.shape.append(turns * first[0]);
  for (std::int64_t e = 0; e < experts; ++e) {
    for (std::int64_t turn = 0; turn < turns; ++turn) {
      DiskPart part;
      part.identity = identity;
      part.identity.expert = static_cast<int>(e);
      part.identity.role = turn == 0 ? rule.role : *rule.below;
      part.parameter = first;
      part.extent = matrix ? Shape{1, first[1], first[0]} : Shape{1, first[0]};
      part.begin[0] = e;
      part.begin[matrix ? 2 : 1] = turn;
      part.step[matrix ? 2 : 1] = turns;
      part.transposed = matrix;
      tensor.parts.push_back(part);
    }
  }
  return tensor;
}

// All experts in one tensor [experts, rows, columns], or [experts, rows] of biases.
DiskTensor stacked_tensor(std::string name, ParameterIdentity identity, const NameRule& rule, std::int64_t experts,
                          const Shape& first, const std::optional<Shape>& second) {
  DiskTensor tensor;
  tensor.name = std::move(name);
  tensor.shape.append(experts);
  tensor.shape.append(first[0] + (second ? (*second)[0] : 0));
  if (first.dims() > 1) tensor.shape.append(first[1]);
  for (std::int64_t e = 0; e < experts; ++e) {
    identity.expert = static_cast<int>(e);
    std::int64_t row = 0;
    for (const auto& [role, shape] :
         {std::pair(rule.role, std::optional(first)), std::pair(rule.below.value_or(rule.role), second)}) {
      if (!shape) continue;
      DiskPart part;
      part.identity = identity;
      part.identity.role = role;
      part.parameter = *shape;
      part.extent = first.dims() > 1 ? Shape{1, (*shape)[0], (*shape)[1]} : Shape{1, (*shape)[0]};
      part.begin = {e, row};
      tensor.parts.push_back(part);
      row += (*shape)[0];
    }
  }
  return tensor;
}

// Heads that a layer's rows come in.
std::int64_t heads_of(const ModelConfig& config, std::optional<Symbol> symbol, int physical) {
  return symbol == Symbol::gated_delta ? config.delta_net.key_heads : config.attention_of(physical).heads;
}

// Several parameters of one layer in one tensor: one below the other, or their rows in turns, so many of each as a head
// has.
DiskTensor packed_tensor(const ModelConfig& config, std::string name, const ParameterIdentity& identity,
                         const NameRule& rule) {
  const std::int64_t turns = rule.by_head ? heads_of(config, rule.symbol, identity.physical) : 1;
  DiskTensor tensor;
  tensor.name = std::move(name);
  std::int64_t row = 0;
  for (std::int64_t turn = 0; turn < turns; ++turn) {
    for (std::size_t i = 0; i <= rule.rest.size(); ++i) {
      DiskPart part;
      part.identity = identity;
      part.identity.role = i == 0 ? rule.role : rule.rest[i - 1];
      const std::optional<Shape> shape = shape_of(config, rule.symbol, identity.physical, part.identity.role);
      WEFT_CHECK(shape, "{}: no shape of {}", tensor.name, name_of(part.identity.role));
      part.parameter = *shape;
      const std::int64_t rows = (*shape)[0] / turns;
      part.offset = turn * rows * (shape->elements() / (*shape)[0]);
      part.extent = {rows};
      if (rule.depthwise) part.extent.append(1);
      for (int d = 1; d < shape->dims(); ++d) part.extent.append((*shape)[d]);
      part.begin[0] = row;
      row += rows;
      tensor.parts.push_back(part);
    }
  }
  tensor.shape = {row};
  for (int d = 1; d < tensor.parts.front().extent.dims(); ++d) tensor.shape.append(tensor.parts.front().extent[d]);
  return tensor;
}

void append_tensors(const ModelConfig& config, const NameRule& rule, std::string name, ParameterIdentity identity,
                    std::vector<DiskTensor>& tensors) {
  const std::optional<Shape> shape = shape_of(config, rule.symbol, identity.physical, rule.role);
  if (!shape) return;
  identity.role = rule.role;
  if (!rule.rest.empty() || rule.depthwise) {
    tensors.push_back(packed_tensor(config, std::move(name), identity, rule));
  } else if (rule.stacking == Stacking::transposed) {
    tensors.push_back(transposed_tensor(std::move(name), identity, rule, config.experts.experts, *shape));
  } else if (rule.stacking == Stacking::plain) {
    std::optional<Shape> second;
    if (rule.below) second = shape_of(config, rule.symbol, identity.physical, *rule.below);
    tensors.push_back(stacked_tensor(std::move(name), identity, rule, config.experts.experts, *shape, second));
  } else if (name.find("{E}") != std::string::npos) {
    for (int e = 0; e < config.experts.experts; ++e) {
      identity.expert = e;
      tensors.push_back(whole_tensor(replaced(name, "{E}", e), identity, *shape));
    }
  } else if (rule.below) {
    const std::optional<Shape> second = shape_of(config, rule.symbol, identity.physical, *rule.below);
    const bool latent = rule.symbol == Symbol::latent_attention || rule.symbol == Symbol::sparse_attention;
    WEFT_CHECK(latent && second, "{}: two parameters in a tensor of one layer", name);
    tensors.push_back(headwise_tensor(std::move(name), identity, rule, config.latent_attention.heads, *shape, *second));
  } else {
    tensors.push_back(whole_tensor(std::move(name), identity, *shape));
  }
}

}  // namespace

NameTable transformer_names() { return transformer; }
NameTable gated_mlp_names() { return gated_mlp; }
NameTable separate_experts_names() { return separate_experts; }
NameTable fused_experts_names() { return fused_experts; }

std::string repeated_groups(std::int64_t layers, std::string_view group) {
  std::string pattern;
  for (std::int64_t i = 0; i < layers; ++i) pattern += group;
  return pattern;
}

namespace {

// Tensors of one layer; identity says its part of the model.
void append_layer(const ModelConfig& config, const PatternLayer& layer, const std::string& prefix, int depth,
                  std::span<const NameTable> tables, std::vector<DiskTensor>& tensors) {
  for (std::size_t i = 0; i < layer.symbols.size(); ++i) {
    ParameterIdentity identity;
    identity.depth = depth;
    identity.physical = layer.physical[i];
    for (const NameTable& table : tables) {
      for (const NameRule& rule : table) {
        if (rule.symbol != layer.symbols[i]) continue;
        append_tensors(config, rule, prefix + std::string(rule.name), identity, tensors);
      }
    }
  }
}

// What an MTP depth has beside its layers. Embedding and head are copies of the model's, or of the one matrix where
// they are tied.
void append_depth(const ModelConfig& config, const std::string& prefix, int depth, NameTable names,
                  std::vector<DiskTensor>& tensors) {
  for (const NameRule& rule : names) {
    const bool copy = rule.role == Role::embedding || rule.role == Role::head;
    ParameterIdentity identity;
    identity.depth = copy ? 0 : depth;
    identity.role = copy && config.tied_embeddings ? Role::embedding : rule.role;
    DiskTensor tensor = whole_tensor(prefix + std::string(rule.name), identity, *model_shape(config, identity.role));
    tensor.copy = copy;
    tensors.push_back(std::move(tensor));
  }
}

}  // namespace

bool has_mtp(const HuggingFaceFamily& family, const ModelConfig& config,
             const std::function<bool(const std::string& name)>& there) {
  const std::string prefix = replaced(family.layer_prefix, "{L}", parse_pattern(config.pattern).logical_layers);
  return std::any_of(family.mtp_names.begin(), family.mtp_names.end(),
                     [&](const NameRule& rule) { return there(prefix + std::string(rule.name)); });
}

std::vector<DiskTensor> tensors_of(const ModelConfig& config, std::string_view layer_prefix,
                                   std::span<const NameTable> tables, NameTable mtp_names) {
  std::vector<DiskTensor> tensors;
  for (const NameTable& table : tables) {
    for (const NameRule& rule : table) {
      if (!rule.symbol) append_tensors(config, rule, std::string(rule.name), {}, tensors);
    }
  }
  const Pattern pattern = parse_pattern(config.pattern);
  for (const Segment& segment : pattern.segments) {
    for (const PatternLayer& layer : segment.layers) {
      append_layer(config, layer, replaced(layer_prefix, "{L}", layer.logical), 0, tables, tensors);
    }
  }
  std::int64_t next = pattern.logical_layers;
  for (int depth = 1; depth <= pattern.mtp_depths; ++depth) {
    append_depth(config, replaced(layer_prefix, "{L}", next), depth, mtp_names, tensors);
    for (const PatternLayer& layer : pattern.mtp_layers) {
      append_layer(config, layer, replaced(layer_prefix, "{L}", next++), depth, tables, tensors);
    }
  }
  return tensors;
}

}  // namespace weft
