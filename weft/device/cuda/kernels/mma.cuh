// Tensor-core products of bf16 (sm_80 and later), and the copies that feed them.
//
// Tiles in shared memory have rows of `chunks` times 16 bytes; the chunks of a row are permuted by its number, so that
// eight rows of one column of chunks lie in different banks.
#pragma once

#include <cstdint>

#include "weft/device/cuda/kernels/values.cuh"

namespace weft::cuda {

__device__ inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// 16 bytes from global to shared memory, in the background; zeros where there is nothing to copy.
__device__ inline void copy_async(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)), "l"(from),
               "r"(valid ? 16 : 0));
}
// Four bytes.
__device__ inline void copy_async4(void* to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(shared_address(to)), "l"(from),
               "r"(valid ? 4 : 0));
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;\n"); }
template <int pending>
__device__ inline void wait_for_copies() {  // until at most `pending` groups are under way
  asm volatile("cp.async.wait_group %0;\n" ::"n"(pending));
}

// Four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void load_matrices(unsigned (&x)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ inline void load_matrices_transposed(unsigned (&x)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_address(row))
               : "memory");
}

// c [16, 8] += a [16, 16] b [16, 8]. With g = lane / 4, t = lane % 4: c holds (g, 2t), (g, 2t + 1), (g + 8, 2t),
// (g + 8, 2t + 1).
__device__ inline void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline unsigned pack_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}
__device__ inline float2 unpack_pair(unsigned pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

// A tile of `chunks` chunks of eight elements per row.
template <int chunks>
struct SharedTile {
  static_assert(chunks >= 8 && (chunks & (chunks - 1)) == 0);
  bf16* data;
  __device__ bf16* at(int row, int chunk) const { return data + (row * chunks + (chunk ^ (row & 7))) * 8; }
};

// The factor a [16, 16] of rows r .. r + 15 and sum elements p .. p + 15 (p a multiple of 16), from a tile whose rows
// are the product's rows.
template <int chunks>
__device__ inline void load_a(unsigned (&a)[4], const SharedTile<chunks>& tile, int r, int p) {
  const int lane = threadIdx.x % 32;
  load_matrices(a, tile.at(r + lane % 8 + (lane / 8 % 2) * 8, p / 8 + lane / 16));
}
// The same from a tile whose rows are what is summed over.
template <int chunks>
__device__ inline void load_a_transposed(unsigned (&a)[4], const SharedTile<chunks>& tile, int r, int p) {
  const int lane = threadIdx.x % 32;
  load_matrices_transposed(a, tile.at(p + lane % 8 + (lane / 16) * 8, r / 8 + lane / 8 % 2));
}
// Two factors b [16, 8], of columns c .. c + 7 (b[0], b[1]) and c + 8 .. c + 15 (b[2], b[3]), from a tile whose rows
// are the product's columns.
template <int chunks>
__device__ inline void load_b(unsigned (&b)[4], const SharedTile<chunks>& tile, int c, int p) {
  const int lane = threadIdx.x % 32;
  load_matrices(b, tile.at(c + lane % 8 + (lane / 16) * 8, p / 8 + lane / 8 % 2));
}
// The same from a tile whose rows are what is summed over.
template <int chunks>
__device__ inline void load_b_transposed(unsigned (&b)[4], const SharedTile<chunks>& tile, int c, int p) {
  const int lane = threadIdx.x % 32;
  load_matrices_transposed(b, tile.at(p + lane % 8 + (lane / 8 % 2) * 8, c / 8 + lane / 16));
}

}  // namespace weft::cuda
