// The names of Weft's own checkpoints: Megatron's, with transformer engine's modules (docs/checkpoints.md).
//
// Layers are numbered as items of the pattern: a group's members share a number. A pattern with groups has Megatron's
// GPT name of the final norm, a flat one the name of its hybrid models.
#pragma once

#include <vector>

#include "weft/checkpoint/disk_tensor.h"
#include "weft/model/config.h"

namespace weft {

// In the order of the model. UserError where two members of one group would have the same names ("[MM]").
std::vector<DiskTensor> canonical_tensors(const ModelConfig& config);

}  // namespace weft
