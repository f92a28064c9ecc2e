// The products of experts on Hopper, one a file. Those that are templates come in several ways while it is being measured
// which is best.
#pragma once

#include "weft/device/cuda/stream.h"

namespace weft::cuda::hopper {

struct Products;

template <int way>
void forward(CudaStream& stream, const Products& products);  // bf16 result
template <int way>
void input_gradient(CudaStream& stream, const Products& products);  // bf16 result
template <int way>
void weight_gradient(CudaStream& stream, const Products& products);         // f32 result, written
void weight_gradient_add(CudaStream& stream, const Products& products);     // f32 result, may be added
void weight_gradient_narrow(CudaStream& stream, const Products& products);  // bf16 result, may be added

}  // namespace weft::cuda::hopper
