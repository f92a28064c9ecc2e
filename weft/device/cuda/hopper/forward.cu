#include "weft/device/cuda/hopper/kernel.cuh"

namespace weft::cuda::hopper {

__global__ void __launch_bounds__(threads_of_a_block, 1)
    forward_of_groups(const __grid_constant__ Parameters parameters) {
#ifdef __CUDA_ARCH__
  run_kernel<Forward>(parameters);
#endif
}

const void* forward_kernel() { return reinterpret_cast<const void*>(&forward_of_groups); }

}  // namespace weft::cuda::hopper
