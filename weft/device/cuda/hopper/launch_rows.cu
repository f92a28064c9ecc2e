// Nothing for a GPU in here, so nothing to read when nvcc compiles for one.
#ifndef __CUDA_ARCH__
#include "weft/device/cuda/hopper/launch.cuh"

namespace weft::cuda::hopper {

void forward(CudaStream& stream, const Products& products) { run<Forward>(stream, products, forward_kernel()); }

void input_gradient(CudaStream& stream, const Products& products) {
  run<InputGradient>(stream, products, input_gradient_kernel());
}

}  // namespace weft::cuda::hopper
#endif
