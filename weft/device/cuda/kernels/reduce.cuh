// Sums and maxima over the threads of a warp or a block, always in the same order.
#pragma once

#include <cuda_runtime.h>

namespace weft::cuda {

constexpr unsigned all_lanes = 0xffffffffu;

template <class T>
__device__ inline T warp_sum(T x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(all_lanes, x, step);
  return x;
}

template <class T>
__device__ inline T warp_max(T x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const T other = __shfl_xor_sync(all_lanes, x, step);
    x = other > x ? other : x;
  }
  return x;
}

// Over a block of `threads` (a multiple of 32, at most 1024), for all of its threads. May be called again at once.
template <int threads, class T>
__device__ inline T block_sum(T x) {
  static_assert(threads >= 32 && threads % 32 == 0 && threads <= 1024);
  __shared__ T parts[threads / 32];
  x = warp_sum(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  T sum = parts[0];
#pragma unroll
  for (int i = 1; i < threads / 32; ++i) sum += parts[i];
  return sum;
}

template <int threads, class T>
__device__ inline T block_max(T x) {
  static_assert(threads >= 32 && threads % 32 == 0 && threads <= 1024);
  __shared__ T parts[threads / 32];
  x = warp_max(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  T top = parts[0];
#pragma unroll
  for (int i = 1; i < threads / 32; ++i) top = parts[i] > top ? parts[i] : top;
  return top;
}

}  // namespace weft::cuda
