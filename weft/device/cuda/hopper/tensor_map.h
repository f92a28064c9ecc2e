// Tensor maps: what a copy engine must know of a tensor of bf16.
#pragma once

#include <cstdint>
#include <initializer_list>

#include <cuda.h>

namespace weft::cuda::hopper {

// One dim of a tensor, and how much of it a copy moves at once.
struct MapDim {
  std::int64_t extent;
  std::int64_t stride;  // elements, a multiple of 8; of the first dim 1
  int box;
};

// The first dim is the fastest; a box has 64 elements of it, which lie in shared memory as a row of 128 swizzled bytes.
CUtensorMap tensor_map(const void* data, std::initializer_list<MapDim> dims);

}  // namespace weft::cuda::hopper
