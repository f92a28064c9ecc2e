// Boxes of parameters out of the tensors of a torch_dist checkpoint.
#pragma once

#include "weft/checkpoint/disk_tensor.h"
#include "weft/checkpoint/torch_dist/torch_dist_checkpoint.h"
#include "weft/model/parameters.h"

namespace weft {

// Writes the elements that both parts hold, `wanted` of a parameter and `stored` of the same one in `tensor`, to their places
// in `values`; converted once. Reads their box alone, some MiB at a time.
void read_part(const TorchDistCheckpoint& files, const ShardedTensor& tensor, const DiskPart& stored,
               const ParameterPart& wanted, HostTensor& values);

}  // namespace weft
