// What the tensor-core kernels of the scan share: 128 threads, four warps, a warp 16 rows; chunks of at most 128 tokens,
// heads of 64. Tokens beyond the chunk's are zeros in shared memory.
#pragma once

#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/mma.cuh"
#include "weft/device/cuda/kernels/reduce.cuh"
#include "weft/device/cuda/kernels/scan.cuh"

namespace weft::cuda {

constexpr int scan_threads = 128, scan_dim = 64, scan_half = 64;
constexpr int scan_heads_a_block = 8;
constexpr float log2_of_e = 1.4426950408889634f;

// Rows [first, last) of the chunk that begins at `begin`, columns [column, column + 8 * chunks), into rows
// [first - to, last - to) of a tile; zeros for tokens from n on.
template <int chunks, int threads = scan_threads>
__device__ inline void copy_tokens(bf16* to_tile, const Rows<const bf16>& x, int begin, int n, int first, int last,
                                   int to, int column) {
  const SharedTile<chunks> tile{to_tile};
  for (int i = static_cast<int>(threadIdx.x); i < (last - first) * chunks; i += threads) {
    const int t = first + i / chunks, chunk = i % chunks;
    const bool valid = t < n;
    copy_async(tile.at(t - to, chunk), valid ? x[begin + t] + column + chunk * 8 : x.data, valid);
  }
}

// A state [64][N] as a tile of bf16; `with`: returns this thread's part of the product of the two.
template <int N, int threads = scan_threads>
__device__ inline float copy_state(bf16* to, const float* from, const float* with) {
  const SharedTile<N / 8> tile{to};
  float dot = 0;
#pragma unroll(threads > scan_threads ? 2 : 4)
  for (int i = 0; i < scan_dim * N / 8 / threads; ++i) {
    const int index = i * threads + static_cast<int>(threadIdx.x);
    float v[8];
    load<8>(from + index * 8, v);
    store<8>(tile.at(index / (N / 8), index % (N / 8)), v);
    if (with != nullptr) {
      float w[8];
      load<8>(with + index * 8, w);
#pragma unroll
      for (int e = 0; e < 8; ++e) dot += v[e] * w[e];
    }
  }
  return dot;
}

// Running sums (of logarithms to base 2) and steps of a head, zeros from n on.
struct HeadSteps {
  float *sum, *dt;  // [128] in shared memory
  __device__ void load(const Steps& steps, std::int64_t at, int n) const {
    const int t = static_cast<int>(threadIdx.x);
    if (t >= scan_rows) return;
    sum[t] = t < n ? static_cast<float>(steps.sum[at + t] * 1.4426950408889634) : 0.0f;
    dt[t] = t < n ? steps.dt[at + t] : 0.0f;
  }
};

// Two neighbouring elements of a tile, column even.
template <int chunks>
__device__ inline float2 pair_at(const SharedTile<chunks>& tile, int row, int column) {
  const unsigned bits = *reinterpret_cast<const unsigned*>(tile.at(row, column / 8) + column % 8);
  return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
}

__device__ inline float sum_of_quad(float x) {
  x += __shfl_xor_sync(all_lanes, x, 1);
  return x + __shfl_xor_sync(all_lanes, x, 2);
}

// A tile of 16 x 16 accumulators as the first factor of the next product.
__device__ inline void as_factor(unsigned (&a)[4], const float (&m)[2][4]) {
  a[0] = pack_pair(m[0][0], m[0][1]);
  a[1] = pack_pair(m[0][2], m[0][3]);
  a[2] = pack_pair(m[1][0], m[1][1]);
  a[3] = pack_pair(m[1][2], m[1][3]);
}

// The heads of a block: as many of one group as scan_heads_a_block.
struct HeadRange {
  int group, first, end;
  template <class T>
  __device__ HeadRange(const ScanArguments<T>& x, int index) {
    const int per_group = (x.per_group + scan_heads_a_block - 1) / scan_heads_a_block;
    group = index / per_group;
    first = group * x.per_group + index % per_group * scan_heads_a_block;
    end = min(first + scan_heads_a_block, (group + 1) * x.per_group);
  }
  static unsigned count(int groups, int per_group) {
    return static_cast<unsigned>(groups * divide_up(per_group, scan_heads_a_block));
  }
};

template <class Kernel>
void allow_shared(const char* name, Kernel kernel, int bytes) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), name);
}

}  // namespace weft::cuda
