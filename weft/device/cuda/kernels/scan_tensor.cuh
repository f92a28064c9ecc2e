// What the tensor-core kernels of the scan share: 128 threads, four warps, 16 rows per warp; chunks of at most 128 tokens,
// heads of 64. Tokens beyond the chunk's are zeros in shared memory.
#pragma once

#include "weft/device/cuda/kernels/accumulators.cuh"
#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/scan.cuh"

namespace weft::cuda {

constexpr int scan_threads = 128, scan_dim = 64, scan_half = 64;
constexpr int scan_heads_per_block = 8;
constexpr float log2_of_e = 1.4426950408889634f;

// Rows [first, last) of the chunk that begins at `begin`, columns [column, column + 8 * chunks), into rows
// [first - to, last - to) of a tile; zeros for tokens from n on.
template <int chunks, int threads = scan_threads, class T>
__device__ inline void copy_tokens(bf16* to_tile, const Rows<T>& x, int begin, int n, int first, int last, int to,
                                   int column) {
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

// The tokens of a thread's two rows of accumulators, in the warp's strip of 16, and the first that each sees: none where
// it is beyond the chunk.
__device__ __forceinline__ void own_tokens(int (&token)[2], int (&lower)[2], const ChunkCut& cut, int begin, int n,
                                           int strip) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    token[r] = strip * 16 + lane / 4 + 8 * r;
    lower[r] = token[r] < n ? cut.first(begin, token[r]) : scan_rows;
  }
}

// pairs[i] += A B^T: rows r .. r + 15 of A, tokens, and rows 16 i .. 16 i + 15 of B, for those i that are seen.
template <int count, int chunks, class Seen>
__device__ __forceinline__ void multiply_pairs(float (&pairs)[count][2][4], const SharedTile<chunks>& A, int r,
                                               const SharedTile<chunks>& B, const Seen& seen) {
#pragma unroll 2
  for (int p = 0; p < chunks * 8; p += 16) {
    unsigned a[4];
    load_a(a, A, r, p);
#pragma unroll
    for (int i = 0; i < count; ++i)
      if (seen(i)) multiply_add(pairs[i], a, B, i * 16, p);
  }
}

// The heads of a block: as many of one group as scan_heads_per_block.
struct HeadRange {
  int group, first, end;
  template <class T>
  __device__ HeadRange(const ScanArguments<T>& x, int index) {
    const int per_group = (x.per_group + scan_heads_per_block - 1) / scan_heads_per_block;
    group = index / per_group;
    first = group * x.per_group + index % per_group * scan_heads_per_block;
    end = min(first + scan_heads_per_block, (group + 1) * x.per_group);
  }
  static unsigned count(int groups, int per_group) {
    return static_cast<unsigned>(groups * divide_up(per_group, scan_heads_per_block));
  }
};

}  // namespace weft::cuda
