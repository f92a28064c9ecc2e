#include "weft/checkpoint/name_rules.h"

#include "weft/base/error.h"
#include "weft/checkpoint/parameter_shapes.h"

namespace weft {
namespace {

struct Held {  // a parameter that a tensor holds
  Role role;
  Shape shape;
};

// Those of the rule that the model has.
std::vector<Held> held_by(const ModelConfig& config, const NameRule& rule, int physical) {
  std::vector<Held> held;
  for (std::size_t i = 0; i <= rule.rest.size(); ++i) {
    const Role role = i == 0 ? rule.role : rule.rest[i - 1];
    if (const std::optional<Shape> shape = parameter_shape(config, rule.symbol, physical, role))
      held.push_back({role, *shape});
  }
  return held;
}

// All experts in one tensor [experts, in, out] or [experts, out] of biases, the columns of several parameters in turns.
DiskTensor transposed_tensor(std::string name, ParameterIdentity identity, std::int64_t experts,
                             const std::vector<Held>& held) {
  const auto turns = std::ssize(held);
  const Shape& first = held[0].shape;
  const bool matrix = first.dims() > 1;
  DiskTensor tensor;
  tensor.name = std::move(name);
  tensor.shape.append(experts);
  if (matrix) tensor.shape.append(first[1]);
  tensor.shape.append(turns * first[0]);
  for (std::int64_t e = 0; e < experts; ++e) {
    identity.expert = static_cast<int>(e);
    for (std::int64_t turn = 0; turn < turns; ++turn) {
      WEFT_CHECK(held[static_cast<std::size_t>(turn)].shape == first, "{}: columns in turns differ in shape",
                 tensor.name);
      DiskPart part;
      part.identity = identity;
      part.identity.role = held[static_cast<std::size_t>(turn)].role;
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
DiskTensor stacked_tensor(std::string name, ParameterIdentity identity, std::int64_t experts,
                          const std::vector<Held>& held) {
  const bool matrix = held[0].shape.dims() > 1;
  std::int64_t rows = 0;
  for (const Held& h : held) rows += h.shape[0];
  DiskTensor tensor;
  tensor.name = std::move(name);
  tensor.shape = matrix ? Shape{experts, rows, held[0].shape[1]} : Shape{experts, rows};
  for (std::int64_t e = 0; e < experts; ++e) {
    identity.expert = static_cast<int>(e);
    std::int64_t row = 0;
    for (const Held& h : held) {
      DiskPart part;
      part.identity = identity;
      part.identity.role = h.role;
      part.parameter = h.shape;
      part.extent = matrix ? Shape{1, h.shape[0], h.shape[1]} : Shape{1, h.shape[0]};
      part.begin = {e, row};
      tensor.parts.push_back(part);
      row += h.shape[0];
    }
  }
  return tensor;
}

std::int64_t turns_of(const ModelConfig& config, const NameRule& rule, int physical) {
  if (rule.turns == Turns::whole) return 1;
  WEFT_CHECK(rule.symbol, "{}: the model has no heads", rule.name);
  if (rule.turns == Turns::groups) return config.attention_of(physical).kv_heads;
  switch (*rule.symbol) {
    case Symbol::gated_delta:
      return config.delta_net.key_heads;
    case Symbol::latent_attention:
    case Symbol::sparse_attention:
      return config.latent_attention.heads;
    default:
      return config.attention_of(physical).heads;
  }
}

// Parameters of one layer in one tensor: one below the other, or their rows in turns.
DiskTensor packed_tensor(std::string name, const ParameterIdentity& identity, const NameRule& rule, std::int64_t turns,
                         const std::vector<Held>& held) {
  DiskTensor tensor;
  tensor.name = std::move(name);
  std::int64_t row = 0;
  Shape extent;
  for (std::int64_t turn = 0; turn < turns; ++turn) {
    for (const Held& h : held) {
      const std::int64_t rows = h.shape[0] / turns;
      extent = {rows};
      if (rule.depthwise) extent.append(1);
      for (int d = 1; d < h.shape.dims(); ++d) extent.append(h.shape[d]);
      if (rows == 0) continue;
      DiskPart part;
      part.identity = identity;
      part.identity.role = h.role;
      part.parameter = h.shape;
      part.extent = extent;
      part.offset = turn * extent.elements();
      part.begin[0] = row;
      row += rows;
      tensor.parts.push_back(part);
    }
  }
  tensor.shape = {row};
  for (int d = 1; d < extent.dims(); ++d) tensor.shape.append(extent[d]);
  return tensor;
}

void append_tensors(const ModelConfig& config, const NameRule& rule, std::string name, ParameterIdentity identity,
                    std::vector<DiskTensor>& tensors) {
  const std::vector<Held> held = held_by(config, rule, identity.physical);
  if (held.empty()) return;
  const std::int64_t experts = config.experts.experts;
  identity.role = held[0].role;
  if (rule.stacking == Stacking::transposed) {
    tensors.push_back(transposed_tensor(std::move(name), identity, experts, held));
  } else if (rule.stacking == Stacking::plain) {
    tensors.push_back(stacked_tensor(std::move(name), identity, experts, held));
  } else if (name.find("{E}") != std::string::npos) {
    WEFT_CHECK(held.size() == 1, "{}: holds one parameter", name);
    for (int e = 0; e < experts; ++e) {
      identity.expert = e;
      const std::pair<std::string_view, std::int64_t> mark{"{E}", e};
      tensors.push_back(whole_tensor(with_numbers(name, {&mark, 1}), identity, held[0].shape));
    }
  } else if (held.size() > 1 || rule.depthwise) {
    tensors.push_back(packed_tensor(std::move(name), identity, rule, turns_of(config, rule, identity.physical), held));
  } else {
    tensors.push_back(whole_tensor(std::move(name), identity, held[0].shape));
  }
}

}  // namespace

std::string with_numbers(std::string_view name, Marks marks) {
  std::string result(name);
  for (const auto& [mark, number] : marks) {
    if (const std::size_t at = result.find(mark); at != std::string::npos)
      result.replace(at, mark.size(), std::to_string(number));
  }
  return result;
}

void append_model(const ModelConfig& config, std::span<const NameTable> tables, std::vector<DiskTensor>& tensors) {
  for (const NameTable& table : tables) {
    for (const NameRule& rule : table) {
      if (!rule.symbol) append_tensors(config, rule, std::string(rule.name), {}, tensors);
    }
  }
}

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

void append_depth(const ModelConfig& config, int depth, NameTable names, Marks marks,
                  std::vector<DiskTensor>& tensors) {
  for (const NameRule& rule : names) {
    const bool copy = rule.role == Role::embedding || rule.role == Role::head;
    ParameterIdentity identity;
    identity.depth = copy ? 0 : depth;
    identity.role = copy && config.tied_embeddings ? Role::embedding : rule.role;
    DiskTensor tensor =
        whole_tensor(with_numbers(rule.name, marks), identity, *parameter_shape(config, {}, -1, identity.role));
    tensor.copy = copy;
    tensors.push_back(std::move(tensor));
  }
}

}  // namespace weft
