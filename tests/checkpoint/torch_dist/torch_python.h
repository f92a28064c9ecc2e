// Reading checkpoints with PyTorch: a Python that has it is $WEFT_TORCH_PYTHON, or python3.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace weft {

// Why PyTorch cannot read here; "": it can.
std::string why_no_torch();
// Every way of reading that read_with_torch.py has gives the tensors and the state that Weft's own reader finds in them.
void expect_torch_reads(const std::vector<std::filesystem::path>& folders);

}  // namespace weft
