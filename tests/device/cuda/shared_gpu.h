// Ranks that share a GPU over NCCL.
#pragma once

#include <string>

namespace weft {

// Why they cannot with this machine's NCCL; "" if they can.
std::string why_no_shared_gpu();

}  // namespace weft
