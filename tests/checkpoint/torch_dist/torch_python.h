// Reading checkpoints with PyTorch: a Python that has it is $WEFT_TORCH_PYTHON, or python3.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "weft/base/json.h"

namespace weft {

// Why PyTorch cannot read here; "": it can.
std::string why_no_torch();
// What read_with_torch.py finds in the folders.
Json read_with_torch(const std::vector<std::filesystem::path>& folders);

}  // namespace weft
