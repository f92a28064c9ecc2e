// Norms work on parts of rows: a warp or a block for each.
#pragma once

#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/reduce.cuh"

namespace weft::cuda {

struct Parts {
  std::int64_t rows, count, width, weight_step;  // weight_step: 0 where the parts share their weights
};

inline Parts parts_of(const char* operation, const Tensor& x, const Tensor& weight, std::int64_t groups) {
  const std::int64_t columns = columns_of(x);
  require(groups >= 1 && columns % groups == 0, operation, "a row does not divide into its parts");
  const std::int64_t width = columns / groups, weights = weight.shape.elements();
  if (x.rows() == 0) return {0, groups, width, 0};
  require(weights == width || weights == columns, operation, "the weight's length is neither a part's nor a row's");
  return {x.rows(), groups, width, weights == width ? 0 : width};
}

inline void check_inverse(const char* operation, const Tensor& inverse, const Tensor& x, std::int64_t groups) {
  require(inverse.dtype == DType::f32 && inverse.shape.elements() == x.rows() * groups, operation,
          "the inverse is not f32 [rows * groups]");
}

// A block handles blockDim.y parts; the `threads` of a row of it share one. With threads = 32 rows are warps.
template <int threads>
__device__ std::int64_t part_index() {
  return threads == 32 ? blockIdx.x * static_cast<std::int64_t>(blockDim.y) + threadIdx.y : blockIdx.x;
}

template <int threads>
__device__ float part_sum(float x) {
  if constexpr (threads == 32)
    return warp_sum(x);
  else
    return block_sum<threads>(x);
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

}  // namespace weft::cuda
