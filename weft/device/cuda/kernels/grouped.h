// The kernels among which grouped_matmul chooses.
#pragma once

#include "weft/device/cuda/stream.h"
#include "weft/device/operations/matmul.h"

namespace weft::cuda {

// Any types, strides and alignment, in plain f32 arithmetic.
void tile_grouped_matmul(CudaStream& stream, const GroupedMatmul& op);
// bf16 factors on tensor cores. False: their alignment does not allow it.
bool tensor_grouped_matmul(CudaStream& stream, const GroupedMatmul& op);
// bf16 factors on Hopper (hopper/). False: another GPU, another alignment, or not built in.
bool hopper_grouped_matmul(CudaStream& stream, const GroupedMatmul& op);

}  // namespace weft::cuda
