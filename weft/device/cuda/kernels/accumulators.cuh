// What a warp does with its accumulators: x [16, 8 n] is float x[n][4], of which x[i] are columns 8 i .. 8 i + 7 as
// multiply_add (mma.cuh) has them. A thread has two rows, lane / 4 + 8 r for r = 0 and 1: elements 2 r and 2 r + 1 of
// every x[i], columns 8 i + 2 (lane % 4) and the next. Four neighbouring threads, a quad, have all of a row.
#pragma once

#include "weft/device/cuda/kernels/mma.cuh"
#include "weft/device/cuda/kernels/reduce.cuh"

namespace weft::cuda {

// x += a b, b [16, 8 n]: columns c .. c + 8 n - 1 and sum elements p .. p + 15, from a tile whose rows are the product's
// columns.
template <int n, int chunks>
__device__ __forceinline__ void multiply_add(float (&x)[n][4], const unsigned (&a)[4], const SharedTile<chunks>& tile,
                                             int c, int p) {
#pragma unroll
  for (int i = 0; i < n / 2; ++i) {
    unsigned b[4];
    load_b(b, tile, c + i * 16, p);
    multiply_add(x[2 * i], a, b[0], b[1]);
    multiply_add(x[2 * i + 1], a, b[2], b[3]);
  }
}
// The same from a tile whose rows are what is summed over.
template <int n, int chunks>
__device__ __forceinline__ void multiply_add_transposed(float (&x)[n][4], const unsigned (&a)[4],
                                                        const SharedTile<chunks>& tile, int c, int p) {
#pragma unroll
  for (int i = 0; i < n / 2; ++i) {
    unsigned b[4];
    load_b_transposed(b, tile, c + i * 16, p);
    multiply_add(x[2 * i], a, b[0], b[1]);
    multiply_add(x[2 * i + 1], a, b[2], b[3]);
  }
}

// x += A B^T: rows r .. r + 15 of A, rows c .. c + 8 n - 1 of B, over all columns.
template <int n, int chunks>
__device__ __forceinline__ void multiply_add_rows(float (&x)[n][4], const SharedTile<chunks>& A, int r,
                                                  const SharedTile<chunks>& B, int c) {
#pragma unroll
  for (int p = 0; p < chunks * 8; p += 16) {
    unsigned a[4];
    load_a(a, A, r, p);
    multiply_add(x, a, B, c, p);
  }
}
// x += A B: rows r .. r + 15 of A, as many rows of B as A has columns, and B's first 8 n columns.
template <int n, int chunks, int columns>
__device__ __forceinline__ void multiply_add_rows_transposed(float (&x)[n][4], const SharedTile<chunks>& A, int r,
                                                             const SharedTile<columns>& B) {
#pragma unroll
  for (int p = 0; p < chunks * 8; p += 16) {
    unsigned a[4];
    load_a(a, A, r, p);
    multiply_add_transposed(x, a, B, 0, p);
  }
}

template <int n>
__device__ __forceinline__ void scale(float (&x)[n][4], float by) {
#pragma unroll
  for (int i = 0; i < n; ++i)
#pragma unroll
    for (int e = 0; e < 4; ++e) x[i][e] *= by;
}
template <int n>
__device__ __forceinline__ void scale_row(float (&x)[n][4], int r, float by) {
#pragma unroll
  for (int i = 0; i < n; ++i) {
    x[i][2 * r] *= by;
    x[i][2 * r + 1] *= by;
  }
}
// Times `by` and rounded, to where the row begins.
template <int n>
__device__ __forceinline__ void store_row(bf16* row, const float (&x)[n][4], int r, float by = 1) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  bf16* to = row + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < n; ++i)
    *reinterpret_cast<unsigned*>(to + i * 8) = pack_pair(x[i][2 * r] * by, x[i][2 * r + 1] * by);
}

// Into rows r .. r + 15 and chunks from `chunk` on of a tile.
template <int n, int chunks>
__device__ __forceinline__ void store_tile(const SharedTile<chunks>& tile, int r, int chunk, const float (&x)[n][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < n; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      *reinterpret_cast<unsigned*>(tile.at(r + lane / 4 + 8 * h, chunk + i) + lane % 4 * 2) =
          pack_pair(x[i][2 * h], x[i][2 * h + 1]);
}

// [16, 16], of columns 0 .. 7 and 8 .. 15, as the first factor of the next product.
__device__ inline void as_factor(unsigned (&a)[4], const float (&low)[4], const float (&high)[4]) {
  a[0] = pack_pair(low[0], low[1]);
  a[1] = pack_pair(low[2], low[3]);
  a[2] = pack_pair(high[0], high[1]);
  a[3] = pack_pair(high[2], high[3]);
}
// Of a factor with sum elements p .. p + 15: element i times by[i].
__device__ inline void scale_columns(unsigned (&a)[4], const float* by, int p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* f = by + p + lane % 4 * 2;
  const auto scaled = [](unsigned x, float low, float high) {
    return pack_pair(__uint_as_float(x << 16) * low, __uint_as_float(x & 0xffff0000u) * high);
  };
  a[0] = scaled(a[0], f[0], f[1]);
  a[1] = scaled(a[1], f[0], f[1]);
  a[2] = scaled(a[2], f[8], f[9]);
  a[3] = scaled(a[3], f[8], f[9]);
}

// Two neighbouring elements of a tile, column even.
template <int chunks>
__device__ inline float2 pair_at(const SharedTile<chunks>& tile, int row, int column) {
  return unpack_pair(*reinterpret_cast<const unsigned*>(tile.at(row, column / 8) + column % 8));
}

__device__ inline float sum_of_quad(float x) {
  x += __shfl_xor_sync(all_lanes, x, 1);
  return x + __shfl_xor_sync(all_lanes, x, 2);
}
// Over the eight lanes that have elements of the same column.
__device__ inline float sum_of_column(float x) {
#pragma unroll
  for (int step = 4; step < 32; step *= 2) x += __shfl_xor_sync(all_lanes, x, step);
  return x;
}
__device__ inline float max_of_quad(float x) {
  x = fmaxf(x, __shfl_xor_sync(all_lanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(all_lanes, x, 2));
}

}  // namespace weft::cuda
