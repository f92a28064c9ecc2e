// grouped_bias and grouped_bias_scale_gradient: the blocks of a group share its rows. (The bias's own gradient is a sum
// down rows: sums.cu.)
#include "weft/device/argument_checks.h"
#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/reduce.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/matmul.h"

namespace weft::cuda {

namespace {

constexpr int threads = 128, blocks_per_group = 64;

template <class T, class B>
__global__ void add_bias(Rows<T> y, Rows<const B> biases, const float* scale, const std::int32_t* counts,
                         const std::int32_t* offsets, std::int64_t columns) {
  const std::int64_t begin = offsets[blockIdx.y], end = begin + counts[blockIdx.y];
  const B* bias = biases[blockIdx.y];
  for (std::int64_t r = begin + blockIdx.x; r < end; r += gridDim.x)
    for (std::int64_t j = threadIdx.x; j < columns; j += threads)
      y[r][j] = narrow<T>(widen(y[r][j]) + scale[r] * widen(bias[j]));
}

template <class T, class B>
__global__ void add_scale_gradient(Rows<const T> dy, Rows<const B> biases, float* dscale, const std::int32_t* counts,
                                   const std::int32_t* offsets, std::int64_t columns) {
  const std::int64_t begin = offsets[blockIdx.y], end = begin + counts[blockIdx.y];
  const B* bias = biases[blockIdx.y];
  for (std::int64_t r = begin + blockIdx.x; r < end; r += gridDim.x) {
    float sum = 0;
    for (std::int64_t j = threadIdx.x; j < columns; j += threads) sum += widen(dy[r][j]) * widen(bias[j]);
    sum = block_sum<threads>(sum);
    if (threadIdx.x == 0) dscale[r] += sum;
  }
}

void check_groups(const char* name, const Tensor& bias) { require(bias.rows() < 65536, name, "65536 groups or more"); }

}  // namespace

void grouped_bias(Stream& stream, const GroupedBias& op) {
  constexpr const char* name = "grouped_bias";
  check_arguments(name, op);
  check_groups(name, op.bias);
  if (op.bias.rows() == 0 || op.y.rows() == 0) return;
  with_storage_and(name, op.y.dtype, op.bias.dtype, [&](auto t, auto u) {
    using T = typename decltype(t)::type;
    using B = typename decltype(u)::type;
    const dim3 grid(blocks_per_group, static_cast<unsigned>(op.bias.rows()));
    add_bias<T, B><<<grid, threads, 0, cuda_stream(stream).handle()>>>(
        rows_of<T>(op.y), rows_of<const B>(op.bias), op.scale.as<float>(), op.groups.counts.as<std::int32_t>(),
        op.groups.offsets.as<std::int32_t>(), columns_of(op.bias));
    launched(name);
  });
}

void grouped_bias_scale_gradient(Stream& stream, const GroupedBiasScaleGradient& op) {
  constexpr const char* name = "grouped_bias_scale_gradient";
  check_arguments(name, op);
  check_groups(name, op.bias);
  if (op.bias.rows() == 0 || op.dy.rows() == 0) return;
  with_storage_and(name, op.dy.dtype, op.bias.dtype, [&](auto t, auto u) {
    using T = typename decltype(t)::type;
    using B = typename decltype(u)::type;
    const dim3 grid(blocks_per_group, static_cast<unsigned>(op.bias.rows()));
    add_scale_gradient<T, B><<<grid, threads, 0, cuda_stream(stream).handle()>>>(
        rows_of<const T>(op.dy), rows_of<const B>(op.bias), op.dscale.as<float>(), op.groups.counts.as<std::int32_t>(),
        op.groups.offsets.as<std::int32_t>(), columns_of(op.bias));
    launched(name);
  });
}

}  // namespace weft::cuda
