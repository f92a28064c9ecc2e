// column_sum and grouped_column_sum: sums down the rows.
#include "weft/device/argument_checks.h"
#include "weft/device/cuda/kernels/column_sums.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/matmul.h"

namespace weft::cuda {

namespace {

template <class T>
struct Element {
  Rows<const T> x;
  __device__ float operator()(std::int64_t r, std::int64_t c) const { return widen(x[r][c]); }
};

// Of a bias's gradient, where rows carry a weight.
template <class T>
struct ScaledElement {
  Rows<const T> x;
  const float* scale;
  __device__ float operator()(std::int64_t r, std::int64_t c) const { return scale[r] * widen(x[r][c]); }
};

template <class F, class Y>
__global__ void sum_groups(F x, std::int64_t columns, const std::int32_t* counts, const std::int32_t* offsets,
                           Rows<Y> y, bool add) {
  const std::int64_t c = blockIdx.x * static_cast<std::int64_t>(column_width) + threadIdx.x;
  const std::int64_t begin = offsets[blockIdx.y], end = begin + counts[blockIdx.y];
  const float sum = sum_of_rows(x, begin, end, c, c < columns);
  if (threadIdx.y != 0 || c >= columns) return;
  Y& to = y[blockIdx.y][c];
  to = narrow<Y>(add ? widen(to) + sum : sum);
}

}  // namespace

void column_sum(Stream& stream, const ColumnSum& op) {
  constexpr const char* name = "column_sum";
  check_arguments(name, op);
  const std::int64_t columns = op.y.shape.elements();
  with_storage_and(name, op.x.dtype, op.y.dtype, [&](auto t, auto u) {
    using T = typename decltype(t)::type;
    using Y = typename decltype(u)::type;
    sum_columns<Y>(name, cuda_stream(stream), Element<T>{rows_of<const T>(op.x)}, op.x.rows(), columns,
                   in_use_of(name, op.rows_in_use), op.y.as<Y>(), op.store);
  });
}

namespace {

// y [G, n] (+)= the sum of f over the rows of each group.
template <class Y, class F>
void sum_each_group(const char* name, CudaStream& stream, const F& f, const Groups& groups, const Tensor& y,
                    Store store) {
  const std::int64_t count = y.rows(), columns = columns_of(y);
  require(count < 65536, name, "65536 groups or more");
  if (count == 0 || columns == 0) return;
  const dim3 grid(static_cast<unsigned>(divide_up(columns, column_width)), static_cast<unsigned>(count));
  sum_groups<F, Y><<<grid, dim3(column_width, column_lanes), 0, stream.handle()>>>(
      f, columns, groups.counts.as<std::int32_t>(), groups.offsets.as<std::int32_t>(), rows_of<Y>(y),
      store == Store::add);
  launched(name);
}

}  // namespace

void grouped_column_sum(Stream& stream, const GroupedColumnSum& op) {
  constexpr const char* name = "grouped_column_sum";
  check_arguments(name, op);
  with_storage_and(name, op.x.dtype, op.y.dtype, [&](auto t, auto u) {
    using T = typename decltype(t)::type;
    sum_each_group<typename decltype(u)::type>(name, cuda_stream(stream), Element<T>{rows_of<const T>(op.x)}, op.groups,
                                               op.y, op.store);
  });
}

void grouped_bias_gradient(Stream& stream, const GroupedBiasGradient& op) {
  constexpr const char* name = "grouped_bias_gradient";
  check_arguments(name, op);
  with_storage_and(name, op.dy.dtype, op.dbias.dtype, [&](auto t, auto u) {
    using T = typename decltype(t)::type;
    sum_each_group<typename decltype(u)::type>(name, cuda_stream(stream),
                                               ScaledElement<T>{rows_of<const T>(op.dy), op.scale.as<float>()},
                                               op.groups, op.dbias, op.store);
  });
}

}  // namespace weft::cuda
