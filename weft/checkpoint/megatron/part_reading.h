// Boxes of parameters out of the tensors of a torch_dist checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "weft/checkpoint/disk_tensor.h"
#include "weft/checkpoint/torch_dist/torch_dist_checkpoint.h"
#include "weft/model/parameters.h"

namespace weft {

// Visits the elements that both parts hold, `wanted` of a parameter and `stored` of the same one in `tensor`: `count` of them
// at `from`, in bytes of the tensor's type, and the index where the first belongs in wanted's tensor. Reads their box alone,
// some MiB at a time.
using VisitElements = std::function<void(const std::byte* from, std::int64_t to, std::int64_t count)>;
void read_part(const TorchDistCheckpoint& files, const ShardedTensor& tensor, const DiskPart& stored,
               const ParameterPart& wanted, const VisitElements& visit);
// The same, each converted once to its place in `values`.
void read_part(const TorchDistCheckpoint& files, const ShardedTensor& tensor, const DiskPart& stored,
               const ParameterPart& wanted, HostTensor& values);

}  // namespace weft
