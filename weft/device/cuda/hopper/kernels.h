// The products of experts on Hopper.
#pragma once

namespace weft::cuda {
class CudaStream;
}
namespace weft {
struct GroupedMatmul;
}

namespace weft::cuda::hopper {

struct Products;
struct Lists;

// Launches the kernel that fills the lists (grouped_matmul.cu).
void list_groups(CudaStream& stream, const Products& products, const Lists& lists);

// forward and input_gradient, all in bf16, n and k multiples of 8 (rows.cu).
void multiply_rows_of(CudaStream& stream, const GroupedMatmul& op);

void weight_gradient(CudaStream& stream, const Products& products);         // f32 result, written
void weight_gradient_short(CudaStream& stream, const Products& products);   // the same, for sums over few rows
void weight_gradient_add(CudaStream& stream, const Products& products);     // f32 result, may be added
void weight_gradient_narrow(CudaStream& stream, const Products& products);  // bf16 result, may be added

// The kernels of the latter, one per file, as cudaLaunchKernelExC takes them: each takes most of a minute to compile.
const void* weight_gradient_kernel();
const void* weight_gradient_short_kernel();
const void* weight_gradient_add_kernel();
const void* weight_gradient_narrow_kernel();

}  // namespace weft::cuda::hopper
