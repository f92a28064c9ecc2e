// Norms work on parts of rows: a warp or a block for each.
#pragma once

#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/reduce.cuh"

namespace weft::cuda {

struct Parts {
  std::int64_t rows, count, width, weight_step;  // weight_step: 0 where the parts share their weights
};

inline Parts parts_of(const Tensor& x, const Tensor& weight, std::int64_t groups) {
  const std::int64_t columns = columns_of(x);
  const std::int64_t width = columns / groups, weights = weight.shape.elements();
  if (x.rows() == 0) return {0, groups, width, 0};
  return {x.rows(), groups, width, weights == width ? 0 : width};
}

// A block handles blockDim.y parts; the `threads` of a row of it share one. With threads = 32 rows are warps.
__device__ inline std::int64_t part_index() { return blockIdx.x * static_cast<std::int64_t>(blockDim.y) + threadIdx.y; }

// The sum over the threads of a part; at_once: the parts of a block. Once a kernel where there are several.
template <int threads, int at_once = 1>
__device__ float part_sum(float x) {
  if constexpr (threads == 32) {
    return warp_sum(x);
  } else if constexpr (at_once == 1) {
    return block_sum<threads>(x);
  } else {
    __shared__ float of_warps[at_once][threads / 32];
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.y][threadIdx.x / 32] = x;
    asm volatile("bar.sync %0, %1;" ::"r"(static_cast<int>(threadIdx.y) + 1), "n"(threads) : "memory");
    float sum = of_warps[threadIdx.y][0];
#pragma unroll
    for (int i = 1; i < threads / 32; ++i) sum += of_warps[threadIdx.y][i];
    return sum;
  }
}

// body(threads): a warp for short parts, a block for long ones.
template <class Body>
void with_threads(const Parts& parts, const Body& body) {
  if (parts.width <= 1024)
    body(std::integral_constant<int, 32>{});
  else
    body(std::integral_constant<int, 256>{});
}

struct Launch {
  dim3 grid, block;
};
template <int threads>
Launch launch_of(const Parts& parts) {
  const unsigned at_once = threads == 32 ? 8 : 1;
  return {dim3(static_cast<unsigned>(divide_up(parts.rows * parts.count, at_once))), dim3(threads, at_once)};
}

// A part that a warp or a block reads once and all at once: up to `count` packs of 8 per thread stay in registers.
template <class T, int threads, int count>
struct Held {
  Pack<T, pack> packs[count];
  __device__ static int place(int i) { return (i * threads + static_cast<int>(threadIdx.x)) * pack; }
  __device__ void read(const T* from, int width) {
#pragma unroll
    for (int i = 0; i < count; ++i)
      if (place(i) < width) packs[i] = *reinterpret_cast<const Pack<T, pack>*>(from + place(i));
  }
  __device__ float operator()(int i, int e) const { return widen(packs[i], e); }
};
// f(i, e) for the elements e of the packs i that this thread holds; then done(i) for each pack.
template <int threads, int count, class F, class Done>
__device__ void over_held(int width, const F& f, const Done& done) {
#pragma unroll
  for (int i = 0; i < count; ++i) {
    if (Held<bf16, threads, count>::place(i) >= width) continue;
#pragma unroll
    for (int e = 0; e < pack; ++e) f(i, e);
    done(i);
  }
}

// Parts of a block where they are held in registers. Blocks of few threads follow one another more closely where there is
// much to compute; large blocks are fewer to launch.
template <int threads>
constexpr int few_parts = threads == 32 ? 4 : 1;
template <int threads, int count>
constexpr int many_parts = threads == 32 ? 8
                           : count > 2   ? 1
                                         : 512 / threads;
template <int threads, int at_once>
Launch held_launch(const Parts& parts) {
  return {dim3(static_cast<unsigned>(divide_up(parts.rows * parts.count, at_once))), dim3(threads, at_once)};
}

// Whether a part fits into the registers of a warp or a block; then body(threads, packs per thread).
template <class T, class Body>
bool with_held(const Parts& parts, bool packed, const Body& body) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (!packed || parts.width <= 256 || parts.width > 8192) return false;
    const auto warp = std::integral_constant<int, 32>{};
    const auto block = std::integral_constant<int, 256>{};
    if (parts.width <= 512)
      body(warp, std::integral_constant<int, 2>{});
    else if (parts.width <= 1024)
      body(warp, std::integral_constant<int, 4>{});
    else if (parts.width <= 2048)
      body(std::integral_constant<int, 128>{}, std::integral_constant<int, 2>{});
    else if (parts.width <= 4096)
      body(block, std::integral_constant<int, 2>{});
    else
      body(block, std::integral_constant<int, 4>{});
    return true;
  }
  return false;
}

}  // namespace weft::cuda
