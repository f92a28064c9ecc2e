// The products of experts on Hopper.
#pragma once

namespace weft::cuda {
class CudaStream;
}

namespace weft::cuda::hopper {

struct Products;
struct Lists;

// Launches the kernel that fills the lists (grouped_matmul.cu).
void list_groups(CudaStream& stream, const Products& products, const Lists& lists);

void forward(CudaStream& stream, const Products& products);                 // bf16 result
void input_gradient(CudaStream& stream, const Products& products);          // bf16 result
void weight_gradient(CudaStream& stream, const Products& products);         // f32 result, written
void weight_gradient_short(CudaStream& stream, const Products& products);   // the same, for sums over few rows
void weight_gradient_add(CudaStream& stream, const Products& products);     // f32 result, may be added
void weight_gradient_narrow(CudaStream& stream, const Products& products);  // bf16 result, may be added

// Their kernels, one a file, as cudaLaunchKernelExC takes them: each takes most of a minute to compile.
const void* forward_kernel();
const void* input_gradient_kernel();
const void* weight_gradient_kernel();
const void* weight_gradient_short_kernel();
const void* weight_gradient_add_kernel();
const void* weight_gradient_narrow_kernel();

}  // namespace weft::cuda::hopper
