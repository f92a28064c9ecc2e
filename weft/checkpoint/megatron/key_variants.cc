#include "weft/checkpoint/megatron/key_variants.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace weft {
namespace {

// Of the same module in models of other kinds: the hybrid one, or one without transformer engine's modules, whose norms
// are modules of their own.
constexpr std::pair<std::string_view, std::string_view> spellings[] = {
    {"decoder.final_norm.weight", "decoder.final_layernorm.weight"},
    {"decoder.final_layernorm.weight", "decoder.final_norm.weight"},
    {".mlp.experts.experts.", ".mlp.experts."},
    {".self_attention.linear_qkv.layer_norm_weight", ".input_layernorm.weight"},
    {".self_attention.linear_q_up_proj.layer_norm_weight", ".self_attention.q_layernorm.weight"},
    {".self_attention.linear_kv_up_proj.layer_norm_weight", ".self_attention.kv_layernorm.weight"},
    {".self_attention.in_proj.layer_norm_weight", ".input_layernorm.weight"},
    {".mixer.in_proj.layer_norm_weight", ".norm.weight"},
    {".mlp.linear_fc1.layer_norm_weight", ".pre_mlp_layernorm.weight"},
};

std::string replaced(std::string text, std::string_view what, std::string_view with) {
  if (const std::size_t at = text.find(what); at != std::string::npos) text.replace(at, what.size(), with);
  return text;
}

// The dim of a tensor whose index is the expert's; nothing: it is not the experts'.
std::optional<int> expert_axis(const DiskTensor& tensor) {
  for (int axis = 0; axis + 1 < tensor.shape.dims(); ++axis) {
    const auto is_index = [axis](const DiskPart& part) {
      return part.identity.expert >= 0 && part.extent[axis] == 1 &&
             part.begin[static_cast<std::size_t>(axis)] == part.identity.expert;
    };
    if (!tensor.parts.empty() && std::all_of(tensor.parts.begin(), tensor.parts.end(), is_index)) return axis;
  }
  return std::nullopt;
}

Shape without_axis(const Shape& shape, int axis) {
  Shape without;
  for (int d = 0; d < shape.dims(); ++d)
    if (d != axis) without.append(shape[d]);
  return without;
}

DiskPart without_axis(DiskPart part, int axis) {
  part.extent = without_axis(part.extent, axis);
  std::copy(part.begin.begin() + axis + 1, part.begin.end(), part.begin.begin() + axis);
  return part;
}

// [.., E, out, ..] as [.., E * out, ..].
DiskTensor with_experts_below(const DiskTensor& tensor, int axis) {
  const std::int64_t rows = tensor.shape[axis + 1];
  DiskTensor joined{tensor.name, {}, {}, tensor.type, false};
  for (int d = 0; d < tensor.shape.dims(); ++d)
    if (d != axis) joined.shape.append(d == axis + 1 ? rows * tensor.shape[axis] : tensor.shape[d]);
  for (DiskPart part : tensor.parts) {
    const std::int64_t first = part.identity.expert * rows;
    part = without_axis(part, axis);
    part.begin[static_cast<std::size_t>(axis)] += first;
    joined.parts.push_back(part);
  }
  return joined;
}

// The names of one expert's key: as grouped linears, sequential experts and single shards have them.
std::vector<std::string> expert_names(const std::string& name, std::int64_t expert) {
  const std::string number = std::to_string(expert);
  const auto inside = [&](std::string_view with) {
    return replaced(name, ".mlp.experts.experts.", fmt::format(".mlp.experts.{}{}.", with, number));
  };
  return {name + number, replaced(name, ".mlp.experts.experts.", ".mlp.experts.") + number, inside("local_experts."),
          inside("experts.")};
}

// The gate's rows and the other's as a key each, "..._w" and "..._v": as Megatron saves them where every shard is single.
std::vector<DiskTensor> gate_and_up(const DiskTensor& tensor, const KeyVariants::Find& there) {
  const std::string_view name = tensor.name;
  const std::size_t linear = name.find(".linear_fc1.");
  if (linear == std::string_view::npos || there(tensor.name + "_w") == nullptr || there(tensor.name + "_v") == nullptr)
    return {};
  const bool bias = name.find(".bias", linear) != std::string_view::npos;
  const int axis = tensor.shape.dims() - (bias ? 1 : 2);
  const auto a = static_cast<std::size_t>(axis);
  const std::int64_t half = tensor.shape[axis] / 2;
  Shape shape;
  for (int d = 0; d < tensor.shape.dims(); ++d) shape.append(d == axis ? half : tensor.shape[d]);
  std::vector<DiskTensor> halves = {{tensor.name + "_w", shape, {}, tensor.type, false},
                                    {tensor.name + "_v", shape, {}, tensor.type, false}};
  for (DiskPart part : tensor.parts) {
    const bool upper = part.begin[a] >= half;
    if (!upper && part.begin[a] + part.extent[axis] > half) return {};  // not gated
    if (upper) part.begin[a] -= half;
    halves[upper ? 1 : 0].parts.push_back(part);
  }
  return halves;
}

// In every form of which all experts are there.
std::vector<std::vector<DiskTensor>> experts_one_by_one(const DiskTensor& tensor, int axis,
                                                        const KeyVariants::Find& there) {
  const auto experts = static_cast<std::size_t>(tensor.shape[axis]);
  std::vector<DiskTensor> each(experts, {"", without_axis(tensor.shape, axis), {}, tensor.type, false});
  for (const DiskPart& part : tensor.parts)
    each[static_cast<std::size_t>(part.identity.expert)].parts.push_back(without_axis(part, axis));
  std::vector<std::vector<DiskTensor>> all;
  for (std::size_t form = 0; form < 4; ++form) {
    std::vector<DiskTensor> found;
    std::size_t complete = 0;
    for (; complete < experts; ++complete) {
      each[complete].name = expert_names(tensor.name, static_cast<std::int64_t>(complete))[form];
      if (there(each[complete].name) != nullptr) {
        found.push_back(each[complete]);
        continue;
      }
      std::vector<DiskTensor> halves = gate_and_up(each[complete], there);
      if (halves.empty()) break;
      for (DiskTensor& half : halves) found.push_back(std::move(half));
    }
    if (complete == experts) all.push_back(std::move(found));
  }
  return all;
}

// The projections and convolutions that Megatron splits when it saves.
bool is_split(std::string_view whole) {
  return whole.ends_with(".in_proj.weight") || whole.ends_with(".conv1d.weight") || whole.ends_with(".conv1d.bias");
}

// Rows are dim 0, or dim 1 where layers are stacked.
int row_axis(const DiskTensor& tensor) {
  return tensor.shape.dims() - (tensor.name.find(".conv1d.weight.") != std::string::npos ? 3
                                : tensor.name.find(".bias.") != std::string::npos        ? 1
                                                                                         : 2);
}

}  // namespace

KeyVariants::KeyVariants(const std::vector<DiskTensor>& tensors) {
  for (const DiskTensor& tensor : tensors) {
    own_names_.insert(tensor.name);
    const std::string whole = tensor.name.substr(0, tensor.name.rfind('.'));
    if (!is_split(whole)) continue;
    std::int64_t& rows = rows_[whole];
    pieces_[tensor.name] = {whole, rows};
    rows += tensor.shape[row_axis(tensor)];
  }
}

std::vector<DiskTensor> KeyVariants::in_one_piece(const DiskTensor& tensor, const Find& there) const {
  const auto at = pieces_.find(tensor.name);
  if (at == pieces_.end() || there(at->second.whole) == nullptr) return {};
  const int axis = row_axis(tensor);
  DiskTensor whole{at->second.whole, {}, tensor.parts, tensor.type, false};
  for (int d = 0; d < tensor.shape.dims(); ++d)
    whole.shape.append(d == axis ? rows_.at(at->second.whole) : tensor.shape[d]);
  for (DiskPart& part : whole.parts) part.begin[static_cast<std::size_t>(axis)] += at->second.first_row;
  return {whole};
}

// Its own first. A name that another tensor of the model has is that tensor's: a group may have an MLP and experts.
std::vector<std::string> KeyVariants::spellings_of(const DiskTensor& tensor) const {
  std::vector<std::string> names = {tensor.name};
  for (const auto& [ours, other] : spellings) {
    std::string name = replaced(tensor.name, ours, other);
    if (name != tensor.name && !own_names_.contains(name)) names.push_back(std::move(name));
  }
  return names;
}

std::vector<DiskTensor> KeyVariants::find(const DiskTensor& tensor, const Find& there) const {
  const std::optional<int> axis = expert_axis(tensor);
  for (const std::string& name : spellings_of(tensor)) {
    const Shape* const shape = there(name);
    if (shape == nullptr) continue;
    DiskTensor found = tensor;
    found.name = name;
    if (axis) {
      const DiskTensor below = with_experts_below(found, *axis);
      if (*shape == below.shape) return {below};
    }
    return {found};
  }
  if (std::vector<DiskTensor> halves = gate_and_up(tensor, there); !halves.empty()) return halves;
  if (!axis) return in_one_piece(tensor, there);
  const std::vector<std::vector<DiskTensor>> forms = experts_one_by_one(tensor, *axis, there);
  return forms.empty() ? std::vector<DiskTensor>() : forms.front();
}

std::optional<std::pair<std::string, std::string>> KeyVariants::find_two(const DiskTensor& tensor,
                                                                         const Find& there) const {
  std::vector<std::string> found;
  for (const std::string& name : spellings_of(tensor))
    if (there(name) != nullptr) found.push_back(name);
  if (const std::optional<int> axis = expert_axis(tensor); axis && found.empty())
    for (const std::vector<DiskTensor>& form : experts_one_by_one(tensor, *axis, there))
      found.push_back(form.front().name);
  if (found.size() < 2) return std::nullopt;
  return std::pair(found[0], found[1]);
}

std::optional<std::string> KeyVariants::find_one_too_many(const DiskTensor& tensor, const Find& there) const {
  const std::optional<int> axis = expert_axis(tensor);
  if (!axis) return std::nullopt;
  for (const std::string& spelling : spellings_of(tensor))
    if (there(spelling) != nullptr) return std::nullopt;
  const std::vector<std::string> firsts = expert_names(tensor.name, 0),
                                 next = expert_names(tensor.name, tensor.shape[*axis]);
  for (std::size_t form = 0; form < next.size(); ++form)
    for (const char* half : {"", "_w"})
      if (there(firsts[form] + half) != nullptr && there(next[form] + half) != nullptr) return next[form] + half;
  return std::nullopt;
}

}  // namespace weft
