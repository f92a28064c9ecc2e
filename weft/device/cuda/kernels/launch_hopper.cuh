// Ways to launch a kernel that came with Hopper. Kernels compile for older GPUs too; such code is launched as usual.
#pragma once

#include <utility>

#include "weft/device/cuda/kernels/launch.cuh"

namespace weft::cuda {

namespace launching {

template <class... Parameters, class... Arguments>
void with(const char* operation, CudaStream& stream, cudaLaunchAttribute attribute, void (*kernel)(Parameters...),
          dim3 grid, dim3 block, std::size_t shared, Arguments&&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream.handle();
  config.attrs = &attribute;
  config.numAttrs = stream.hopper_code() ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(std::forward<Arguments>(arguments))...),
             operation);
}

}  // namespace launching

// A kernel whose blocks may start while the last ones of the kernel before it run. Until it has called await_previous() it
// reads nothing that the kernel before it writes, and writes nothing. That one calls let_next_start().
template <class... Parameters, class... Arguments>
void launch_early(const char* operation, CudaStream& stream, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                  std::size_t shared, Arguments&&... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  launching::with(operation, stream, attribute, kernel, grid, block, shared, std::forward<Arguments>(arguments)...);
}
__device__ inline void await_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Blocks in clusters of `size` along x, each on neighbouring multiprocessors.
template <class... Parameters, class... Arguments>
void launch_clusters(const char* operation, CudaStream& stream, unsigned size, void (*kernel)(Parameters...), dim3 grid,
                     dim3 block, std::size_t shared, Arguments&&... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = size;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  launching::with(operation, stream, attribute, kernel, grid, block, shared, std::forward<Arguments>(arguments)...);
}

}  // namespace weft::cuda
