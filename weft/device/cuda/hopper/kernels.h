// The products of experts on Hopper, one a file.
#pragma once

#include "weft/device/cuda/stream.h"

namespace weft::cuda::hopper {

struct Products;

void forward(CudaStream& stream, const Products& products);                 // bf16 result
void input_gradient(CudaStream& stream, const Products& products);          // bf16 result
void weight_gradient(CudaStream& stream, const Products& products);         // f32 result, written
void weight_gradient_short(CudaStream& stream, const Products& products);   // the same, for sums over few rows
void weight_gradient_add(CudaStream& stream, const Products& products);     // f32 result, may be added
void weight_gradient_narrow(CudaStream& stream, const Products& products);  // bf16 result, may be added

}  // namespace weft::cuda::hopper
