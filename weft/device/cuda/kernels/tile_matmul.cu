// Products of any types, strides and alignment in plain f32 arithmetic: what cuBLASLt and the tensor-core kernels leave
// over, and grouped products in f32.
#include "weft/device/cuda/blas.h"
#include "weft/device/cuda/kernels/grouped.h"
#include "weft/device/cuda/kernels/groups.cuh"
#include "weft/device/cuda/kernels/launch.cuh"

namespace weft::cuda {

namespace {

constexpr int tile = 64, depth = 16,
              per_thread = 4;  // of a block of 256 threads: c [tile, tile], sums in steps of depth

// c [m, n] (+)= a b (+ bias) (+ residual). An element of a is a[i * a_row + p * a_sum], of b b[p * b_sum + j * b_column].
struct Problem {
  const void *a, *b, *bias, *residual;
  void* c;
  std::int64_t m, n, k;
  std::int64_t a_row, a_sum, b_sum, b_column, c_stride, residual_stride;
  bool add, single_bias;
  // With groups: rows of a and c, or (sums_rows) what is summed over, lie in groups.
  const std::int32_t *counts, *offsets;
  int groups;
  bool sums_rows;
  std::int64_t b_group, c_group, bias_group;  // elements from one group to the next
};

template <class T>
__device__ float at(const void* data, std::int64_t index) {
  return widen(static_cast<const T*>(data)[index]);
}

// tile_of[p][i] = x[(first + i) * outer + (p0 + p) * inner], zero outside; threads walk along the smaller stride.
template <class T>
__device__ void load_tile(float (&to)[depth][tile + 1], const T* x, std::int64_t outer, std::int64_t inner,
                          std::int64_t first, std::int64_t end, std::int64_t p0, std::int64_t k) {
#pragma unroll
  for (int step = 0; step < tile * depth / 256; ++step) {
    const int index = step * 256 + static_cast<int>(threadIdx.x);
    const int i = inner == 1 ? index / depth : index % tile, p = inner == 1 ? index % depth : index / tile;
    const bool inside = first + i < end && p0 + p < k;
    to[p][i] = inside ? widen(x[(first + i) * outer + (p0 + p) * inner]) : 0.0f;
  }
}

template <class A, class B, class C>
__global__ void __launch_bounds__(256) tile_kernel(Problem p) {
  __shared__ float a_tile[depth][tile + 1], b_tile[depth][tile + 1];
  const A* a = static_cast<const A*>(p.a);
  const B* b = static_cast<const B*>(p.b);
  C* c = static_cast<C*>(p.c);
  std::int64_t row = blockIdx.y * static_cast<std::int64_t>(tile), m = p.m, k = p.k, bias_at = 0;
  const std::int64_t column = blockIdx.x * static_cast<std::int64_t>(tile);
  if (p.counts != nullptr && p.sums_rows) {
    const std::int64_t group = blockIdx.z, offset = p.offsets[group];
    k = p.counts[group];
    a += offset * p.a_sum;
    b += offset * p.b_sum;
    c += group * p.c_group;
  } else if (p.counts != nullptr) {
    const TilePlace place = find_tile(p.counts, p.offsets, p.groups, tile, static_cast<int>(blockIdx.y));
    if (place.group < 0) return;
    row = place.first_row;
    m = place.count;
    a += place.offset * p.a_row;
    b += place.group * p.b_group;
    c += place.offset * p.c_stride;
    bias_at = place.group * p.bias_group;
  }

  float sums[per_thread][per_thread] = {};
  const int ty = static_cast<int>(threadIdx.x) / 16, tx = static_cast<int>(threadIdx.x) % 16;
  for (std::int64_t p0 = 0; p0 < k; p0 += depth) {
    load_tile(a_tile, a, p.a_row, p.a_sum, row, m, p0, k);
    load_tile(b_tile, b, p.b_column, p.b_sum, column, p.n, p0, k);
    __syncthreads();
#pragma unroll
    for (int q = 0; q < depth; ++q) {
      float x[per_thread], y[per_thread];
#pragma unroll
      for (int i = 0; i < per_thread; ++i) x[i] = a_tile[q][ty + 16 * i];
#pragma unroll
      for (int j = 0; j < per_thread; ++j) y[j] = b_tile[q][tx + 16 * j];
#pragma unroll
      for (int i = 0; i < per_thread; ++i)
#pragma unroll
        for (int j = 0; j < per_thread; ++j) sums[i][j] += x[i] * y[j];
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < per_thread; ++i)
#pragma unroll
    for (int j = 0; j < per_thread; ++j) {
      const std::int64_t r = row + ty + 16 * i, s = column + tx + 16 * j;
      if (r >= m || s >= p.n) continue;
      float value = sums[i][j];
      if (p.bias != nullptr) value += p.single_bias ? at<float>(p.bias, bias_at + s) : at<bf16>(p.bias, bias_at + s);
      if (p.residual != nullptr) value += at<C>(p.residual, r * p.residual_stride + s);
      C& to = c[r * p.c_stride + s];
      to = narrow<C>(p.add ? widen(to) + value : value);
    }
}

void run(const char* name, CudaStream& stream, const Problem& p, DType a_type, DType b_type, DType c_type,
         std::int64_t row_tiles) {
  const dim3 grid(static_cast<unsigned>(divide_up(p.n, tile)), static_cast<unsigned>(row_tiles),
                  p.sums_rows ? static_cast<unsigned>(p.groups) : 1u);
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  require(row_tiles < 65536, name, "more than 4 million rows");
  with_storage(name, a_type, [&](auto a) {
    with_storage(name, b_type, [&](auto b) {
      with_storage(name, c_type, [&](auto c) {
        using A = typename decltype(a)::type;
        using B = typename decltype(b)::type;
        using C = typename decltype(c)::type;
        tile_kernel<A, B, C><<<grid, 256, 0, stream.handle()>>>(p);
        launched(name);
      });
    });
  });
}

void check_bias(const char* name, const Tensor& bias) {
  require(!bias.given() || bias.dtype == DType::f32 || bias.dtype == DType::bf16, name, "the bias is not f32 or bf16");
}

}  // namespace

void tile_matmul(CudaStream& stream, const Matmul& op) {
  check_bias("matmul", op.bias);
  const bool ta = op.transpose_a == Transposed::yes, tb = op.transpose_b == Transposed::yes;
  Problem p = {};
  p.a = op.a.data, p.b = op.b.data, p.c = op.c.data;
  p.m = op.c.shape[0], p.n = op.c.shape[1], p.k = ta ? op.a.shape[0] : op.a.shape[1];
  p.a_row = ta ? 1 : op.a.stride, p.a_sum = ta ? op.a.stride : 1;
  p.b_sum = tb ? 1 : op.b.stride, p.b_column = tb ? op.b.stride : 1;
  p.c_stride = op.c.stride;
  p.add = op.store == Store::add;
  p.bias = optional<const void>(op.bias), p.single_bias = op.bias.dtype == DType::f32;
  p.residual = optional<const void>(op.residual), p.residual_stride = op.residual.stride;
  run("matmul", stream, p, op.a.dtype, op.b.dtype, op.c.dtype, divide_up(p.m, tile));
}

void tile_grouped_matmul(CudaStream& stream, const GroupedMatmul& op) {
  constexpr const char* name = "grouped_matmul";
  using Mode = GroupedMatmul::Mode;
  check_bias(name, op.bias);
  const std::int64_t n = op.w.shape[1], k = op.w.shape[2], rows = op.x.rows();
  Problem p = {};
  p.counts = op.groups.counts.as<std::int32_t>(), p.offsets = op.groups.offsets.as<std::int32_t>();
  p.groups = static_cast<int>(op.w.shape[0]);
  const std::int64_t row_tiles = rows / tile + p.groups;  // each group may end within a tile
  switch (op.mode) {
    case Mode::forward:
      p.a = op.x.data, p.b = op.w.data, p.c = op.y.data;
      p.m = rows, p.n = n, p.k = k;
      p.a_row = op.x.stride, p.a_sum = 1, p.b_sum = 1, p.b_column = k, p.c_stride = op.y.stride;
      p.b_group = op.w.stride, p.bias_group = n;
      p.bias = optional<const void>(op.bias), p.single_bias = op.bias.dtype == DType::f32;
      return run(name, stream, p, op.x.dtype, op.w.dtype, op.y.dtype, row_tiles);
    case Mode::input_gradient:
      p.a = op.y.data, p.b = op.w.data, p.c = op.x.data;
      p.m = rows, p.n = k, p.k = n;
      p.a_row = op.y.stride, p.a_sum = 1, p.b_sum = k, p.b_column = 1, p.c_stride = op.x.stride;
      p.b_group = op.w.stride;
      return run(name, stream, p, op.y.dtype, op.w.dtype, op.x.dtype, row_tiles);
    case Mode::weight_gradient:
      p.a = op.y.data, p.b = op.x.data, p.c = op.w.data;
      p.m = n, p.n = k;
      p.a_row = 1, p.a_sum = op.y.stride, p.b_sum = op.x.stride, p.b_column = 1, p.c_stride = k;
      p.c_group = op.w.stride, p.sums_rows = true;
      p.add = op.store == Store::add;
      return run(name, stream, p, op.y.dtype, op.x.dtype, op.w.dtype, divide_up(n, tile));
  }
}

}  // namespace weft::cuda
