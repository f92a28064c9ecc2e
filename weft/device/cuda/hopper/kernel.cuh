// For the files of kernels: CUTLASS for the GPU's half of the compilation only. The host's half takes a kernel's address
// and needs no more than its parameters; reading and instantiating the rest twice took a third of the time.
#pragma once

#include "weft/device/cuda/hopper/kernels.h"
#include "weft/device/cuda/hopper/products.h"
#ifdef __CUDA_ARCH__
#include "weft/device/cuda/hopper/grouped.cuh"
#else
#include <cute/int_tuple.hpp>  // with the next, all headers that have constants in device memory, which the host registers
#include <cute/underscore.hpp>
#endif

// The kernel NAME_of_groups of the products G (grouped.cuh), and NAME_kernel(), its address (kernels.h). A macro, since G is
// known to the GPU's half alone: a template could not be instantiated by the host's.
#ifdef __CUDA_ARCH__
#define WEFT_RUN_KERNEL(G) run_kernel<G>(parameters);
#else
#define WEFT_RUN_KERNEL(G)
#endif
// clang-format off
#define WEFT_KERNEL_OF_GROUPS(name, G)                                                             \
  namespace weft::cuda::hopper {                                                                   \
  __global__ void __launch_bounds__(threads_per_block, 1)                                         \
      name##_of_groups(const __grid_constant__ Parameters parameters) {                            \
    WEFT_RUN_KERNEL(G)                                                                             \
  }                                                                                                \
  const void* name##_kernel() { return reinterpret_cast<const void*>(&name##_of_groups); }         \
  }
// clang-format on
