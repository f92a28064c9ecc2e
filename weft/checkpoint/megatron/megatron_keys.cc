#include "weft/checkpoint/megatron/megatron_keys.h"

#include <algorithm>
#include <map>

#include "weft/base/error.h"
#include "weft/base/text.h"

namespace weft {
namespace {

constexpr std::string_view layer_prefix = "decoder.layers.";

// {3, "mlp.router.weight"} of "decoder.layers.3.mlp.router.weight"; nothing for keys outside of the layers.
struct LayerKey {
  std::int64_t layer = 0;
  std::string rest;
};
std::optional<LayerKey> layer_key(const std::string& name) {
  if (!name.starts_with(layer_prefix)) return std::nullopt;
  const std::size_t dot = name.find('.', layer_prefix.size());
  LayerKey key;
  if (dot == std::string::npos ||
      !parse_int(std::string_view(name).substr(layer_prefix.size(), dot - layer_prefix.size()), key.layer))
    return std::nullopt;
  key.rest = name.substr(dot + 1);
  return key;
}

Shape with_axis(std::int64_t extent, const Shape& shape) {
  Shape with{extent};
  for (int d = 0; d < shape.dims(); ++d) with.append(shape[d]);
  return with;
}

// The same part in a tensor that has one more axis in front, at `index` of it.
DiskPart with_axis(DiskPart part, std::int64_t index) {
  part.extent = with_axis(1, part.extent);
  std::copy_backward(part.begin.begin(), part.begin.end() - 1, part.begin.end());
  std::copy_backward(part.step.begin(), part.step.end() - 1, part.step.end());
  part.begin[0] = index;
  part.step[0] = 1;
  return part;
}

[[noreturn]] void fail_to_stack(const ModelConfig& config, std::string_view why) {
  throw UserError(
      "the layers of the pattern {} cannot be stacked into one tensor each: {}; --megatron-transformer writes a key "
      "for "
      "each layer",
      config.pattern, why);
}

std::vector<DiskTensor> stacked(const std::vector<DiskTensor>& tensors, const ModelConfig& config) {
  std::int64_t layers = 0;
  for (const DiskTensor& tensor : tensors)
    if (const std::optional<LayerKey> key = layer_key(tensor.name)) layers = std::max(layers, key->layer + 1);
  std::vector<DiskTensor> result;
  std::map<std::string, std::size_t> at;  // of a key in `result`
  std::map<std::string, std::int64_t> members;
  for (const DiskTensor& tensor : tensors) {
    const std::optional<LayerKey> key = layer_key(tensor.name);
    if (!key) {
      result.push_back(tensor);
      continue;
    }
    const Shape shape = with_axis(layers, tensor.shape);
    const auto [place, is_new] = at.try_emplace(key->rest, result.size());
    if (is_new) result.push_back({std::string(layer_prefix) + key->rest, shape, {}, tensor.type, false});
    DiskTensor& stack = result[place->second];
    if (stack.shape != shape)
      fail_to_stack(config, fmt::format("'{}' does not have the same shape in all of them", key->rest));
    for (const DiskPart& part : tensor.parts) stack.parts.push_back(with_axis(part, key->layer));
    ++members[key->rest];
  }
  for (const auto& [rest, count] : members)
    if (count != layers) fail_to_stack(config, fmt::format("{} of {} have '{}'", count, layers, rest));
  return result;
}

bool is_mlp(const PatternLayer& layer) {
  return layer.symbols[0] == Symbol::mlp || layer.symbols[0] == Symbol::experts;
}

// A layer of a transformer.
struct Block {
  Symbol mixer = Symbol::attention, mlp = Symbol::mlp;
  bool operator==(const Block&) const = default;
};

// Those of a transformer whose flags could make these layers.
std::vector<Block> transformer_blocks(const ModelConfig& config) {
  const Pattern pattern = parse_pattern(config.pattern);
  const auto require = [&](bool holds, std::string_view why) {
    if (!holds)
      throw UserError("the pattern {} is not that of a transformer of Megatron's: {}; write it as a hybrid model",
                      config.pattern, why);
  };
  const auto blocks_of = [&](const std::vector<PatternLayer>& layers) {
    std::vector<Block> blocks;
    for (std::size_t i = 0; i < layers.size(); i += 2) {
      const bool pair = i + 1 < layers.size() && !is_mlp(layers[i]) && is_mlp(layers[i + 1]);
      require(pair && layers[i].symbols[0] != Symbol::mamba,
              "its layers are an attention or a gated delta net, and an MLP or experts after it");
      blocks.push_back({layers[i].symbols[0], layers[i + 1].symbols[0]});
    }
    return blocks;
  };
  const std::vector<Block> blocks = blocks_of(main_layers(pattern)), depth = blocks_of(depth_layers(pattern));
  std::optional<Symbol> attention;
  for (const Block& block : blocks) {
    if (block.mixer == Symbol::gated_delta) continue;
    require(!attention || *attention == block.mixer, "all its attention is of one kind");
    attention = block.mixer;
  }
  require(pattern.mtp_depths == 0 || depth == std::vector{blocks.back()}, "an MTP depth has a layer like the last one");
  return blocks;
}

// Megatron stacks unless a list or a number chooses among the layers, and only a list chooses gated delta nets alone.
bool are_stacked(const std::vector<Block>& blocks) {
  return blocks[0].mixer != Symbol::gated_delta &&
         std::all_of(blocks.begin(), blocks.end(), [&](const Block& block) { return block == blocks[0]; });
}

}  // namespace

std::vector<int> symbol_numbers(const std::vector<PatternLayer>& layers) {
  std::vector<int> numbers;
  for (std::size_t i = 0; i < layers.size(); ++i) numbers.push_back(static_cast<int>(i));
  return numbers;
}

std::vector<int> block_numbers(const std::vector<PatternLayer>& layers) {
  std::vector<int> numbers;
  int block = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (i > 0 && (!is_mlp(layers[i]) || is_mlp(layers[i - 1]))) ++block;
    numbers.push_back(block);
  }
  return numbers;
}

MegatronForm megatron_form(const ModelConfig& config) { return {canonical_form(parse_pattern(config.pattern))}; }

MegatronForm transformer_megatron_form(const ModelConfig& config) {
  const Pattern pattern = parse_pattern(config.pattern);
  MegatronForm form;
  form.transformer = true;
  form.stacked = are_stacked(transformer_blocks(config));
  form.names.layers = block_numbers(main_layers(pattern));
  form.names.depth_layers = block_numbers(depth_layers(pattern));
  form.names.transformer_depths = true;
  form.names.final_norm = final_norm_of_groups;
  return form;
}

MegatronForm stacked_megatron_form(const ModelConfig& config) {
  MegatronForm form = transformer_megatron_form(config);
  const bool alike = form.stacked;
  form.stacked = true;
  megatron_tensors(config, form);  // names a key that not all of them have
  if (!alike) fail_to_stack(config, "Megatron chooses gated delta nets by a list, and then has a key for each layer");
  return form;
}

std::vector<DiskTensor> megatron_tensors(const ModelConfig& config, const MegatronForm& form) {
  std::vector<DiskTensor> tensors = canonical_tensors(config, form.names);
  if (const std::optional<std::string> name = first_collision(tensors))
    throw UserError(
        "the pattern {} has two symbols in one layer of Megatron's that would both be '{}' in a checkpoint; write them "
        "outside of the group",
        config.pattern, *name);
  return form.stacked ? stacked(tensors, config) : tensors;
}

}  // namespace weft
