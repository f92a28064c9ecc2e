#pragma once

#include <cstdint>

#include <cuda_bf16.h>

namespace weft::cuda::hopper {

// What the products of all groups have in common. d [m, n] = a b (+ d, with add); where sizes or places vary by group:
//   usually    m = count; a and d begin at row `offset`
//   sums_rows  k = count; a and b begin at row `offset`
struct Products {
  const __nv_bfloat16 *a, *b;
  void* d;
  int m, n, k, groups;
  std::int64_t a_stride, b_stride, d_stride, b_group, d_group;
  const std::int32_t *counts, *offsets;
  bool sums_rows, add;
};

}  // namespace weft::cuda::hopper
