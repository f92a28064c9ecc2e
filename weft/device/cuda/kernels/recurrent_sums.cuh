// What recurrences share: gates, running sums of a warp, and the gradients of parameters that every head has one of.
#pragma once

#include "weft/device/cuda/kernels/reduce.cuh"
#include "weft/device/cuda/stream.h"
#include "weft/device/operations/store.h"

namespace weft::cuda {

__device__ inline float softplus(float x) { return x > 30.0f ? x + expf(-x) : log1pf(expf(x)); }

// The sum over lanes up to and with this one.
__device__ inline double warp_scan(double x) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const double before = __shfl_up_sync(all_lanes, x, static_cast<unsigned>(step));
    if (lane >= step) x += before;
  }
  return x;
}

// Gradients [heads] of up to three parameters; null: not wanted.
struct HeadGradients {
  float* at[3];
  int count;
};
// gradient [head] (+)= the sum over chunks of sums [chunks][count * heads].
void add_chunk_sums(const char* name, CudaStream& stream, const float* sums, std::int64_t chunks, std::int64_t heads,
                    const HeadGradients& gradients, Store store);

}  // namespace weft::cuda
