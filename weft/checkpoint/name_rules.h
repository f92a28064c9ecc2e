// Names on disk as tables: a rule gives the name under which parameters of a layer are stored, and their layout there.
// Families of Hugging Face (hf_*.cc) and Weft's own checkpoints (canonical_names.cc) are tables of such rules.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/checkpoint/disk_tensor.h"
#include "weft/model/config.h"

namespace weft {

// Whether a tensor holds all experts of a layer; they are dim 0.
enum class Stacking : std::uint8_t {
  none,
  plain,       // every expert's matrix as it is; of several parameters, the rows of each below those of the one before
  transposed,  // [in, out]; of several parameters, columns in turns: first, second, first, ...
};

// Where one tensor holds the rows of several parameters of a layer.
enum class Turns : std::uint8_t {
  whole,   // one parameter after another
  heads,   // so many rows of each as a head has, head by head (of a gated delta net: of its keys)
  groups,  // so many as a group of queries with its key and value has, group by group
};

struct NameRule {
  std::optional<Symbol> symbol;  // one in each layer of this kind; absent: one in the model
  std::string_view name;         // in layers after a prefix; {E}: expert
  Role role;
  std::span<const Role> rest = {};  // further parameters of the same layer in the same tensor
  Stacking stacking = Stacking::none;
  Turns turns = Turns::whole;
  bool depthwise = false;  // [channels, taps] is stored as [channels, 1, taps]
};
using NameTable = std::span<const NameRule>;

// {mark, number}: "{L}" in a name stands for it.
using Marks = std::span<const std::pair<std::string_view, std::int64_t>>;
std::string with_numbers(std::string_view name, Marks marks);

// Each appends in the order of the rules. A rule whose parameters the model lacks makes no tensor; of several
// parameters in one tensor, those that it lacks are left out.

void append_model(const ModelConfig& config, std::span<const NameTable> tables, std::vector<DiskTensor>& tensors);
// depth 0: of the main part.
void append_layer(const ModelConfig& config, const PatternLayer& layer, const std::string& prefix, int depth,
                  std::span<const NameTable> tables, std::vector<DiskTensor>& tensors);
// What an MTP depth has beside its layers. Embedding and head there are copies of the model's, or of the one matrix
// where they are tied.
void append_depth(const ModelConfig& config, int depth, NameTable names, Marks marks, std::vector<DiskTensor>& tensors);

}  // namespace weft
