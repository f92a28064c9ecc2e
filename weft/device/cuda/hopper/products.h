#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_bf16.h>

namespace weft::cuda::hopper {

// What the sums over rows have in common. d [m, n] of a group = a b (+ d, with add), of `count` rows of a and b from row
// `offset` on.
struct Products {
  const __nv_bfloat16 *a, *b;
  void* d;
  int m, n, groups;
  std::int64_t a_stride, b_stride, d_stride, d_group;
  const std::int32_t *counts, *offsets;
  bool add;
  int d_bytes;  // of an element of d
};

// Of every group, as CUTLASS takes them: arrays over the groups, in device memory.
struct Sizes {
  int m, n, k;
};
struct Lists {
  Sizes* sizes;
  const __nv_bfloat16 **a, **b;
  void** d;
  std::int64_t *a_stride, *b_stride, *d_stride;
};

// What a kernel is launched with: CUTLASS's parameters, whose type only device code and launch.cuh know.
struct alignas(128) Parameters {
  std::byte bytes[2048];
};
constexpr int threads_per_block = 384;  // two warp groups that multiply, one that loads

}  // namespace weft::cuda::hopper
