// The names of Weft's own checkpoints: Megatron's, with transformer engine's modules (docs/checkpoints.md).
//
// Layers are numbered as items of the pattern: a group's members share a number. A pattern with groups has Megatron's
// GPT name of the final norm, a flat one the name of its hybrid models.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/checkpoint/disk_tensor.h"
#include "weft/model/config.h"

namespace weft {

// In the order of the model. UserError where two members of one group would have the same names ("[MM]").
std::vector<DiskTensor> canonical_tensors(const ModelConfig& config);

inline constexpr std::string_view final_norm_of_groups = "decoder.final_layernorm.weight";
inline constexpr std::string_view final_norm_of_flat = "decoder.final_norm.weight";

// What the names of models with the same layers may differ in.
struct CanonicalForm {
  std::vector<int> layers;          // by physical index: the N of decoder.layers.N
  std::vector<int> depth_layers;    // the same of an MTP depth: mtp.layers.D.mtp_model_layer.layers.N
  bool transformer_depths = false;  // a depth's layers are mtp.layers.D.transformer_layer instead, without a number
  std::string_view final_norm;      // one of the two above
};
CanonicalForm canonical_form(const Pattern& pattern);  // the one of canonical_tensors(config)
// Names may occur twice (first_collision).
std::vector<DiskTensor> canonical_tensors(const ModelConfig& config, const CanonicalForm& form);
std::optional<std::string> first_collision(const std::vector<DiskTensor>& tensors);

// The symbols of the main part, or of an MTP depth, each as a layer of its own with the number of its item.
std::vector<PatternLayer> main_layers(const Pattern& pattern);
std::vector<PatternLayer> depth_layers(const Pattern& pattern);

}  // namespace weft
