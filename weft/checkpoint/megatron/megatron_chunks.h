// The chunks that Megatron saves a tensor in: every expert by itself, the rows of the gate and those of the linear factor
// apart, every layer of a stacked tensor; anything else in one piece.
#pragma once

#include <vector>

#include "weft/checkpoint/disk_tensor.h"
#include "weft/model/boxes.h"

namespace weft {

struct MegatronChunk {
  Box box;            // of the tensor
  DiskTensor tensor;  // what lies in it, as a tensor of its own
};
// In the order of their first element; they tile the tensor.
std::vector<MegatronChunk> megatron_chunks(const DiskTensor& tensor);

}  // namespace weft
