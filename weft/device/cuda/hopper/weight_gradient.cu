#include "weft/device/cuda/hopper/kernel.cuh"

namespace weft::cuda::hopper {

__global__ void __launch_bounds__(threads_of_a_block, 1)
    weight_gradient_of_groups(const __grid_constant__ Parameters parameters) {
#ifdef __CUDA_ARCH__
  run_kernel<WeightGradient>(parameters);
#endif
}

const void* weight_gradient_kernel() { return reinterpret_cast<const void*>(&weight_gradient_of_groups); }

}  // namespace weft::cuda::hopper
