// Adding up what ranks have, in rank order: weft/device/reduction.h in GPU memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "weft/device/cuda/stream.h"
#include "weft/device/reduction.h"

namespace weft::cuda {

void reduce_in_order(CudaStream& stream, Reduction reduction, DType dtype, void* out,
                     std::span<const std::byte* const> inputs, std::int64_t count);

}  // namespace weft::cuda
