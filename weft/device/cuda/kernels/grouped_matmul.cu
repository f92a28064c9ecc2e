// grouped_matmul on tensor cores: c tiles of 128 x 128, sums in steps of 64, three steps in flight. Counts and offsets
// are read on the device; blocks that find no tile leave at once.
#include "weft/device/argument_checks.h"
#include "weft/device/cuda/kernels/grouped.h"
#include "weft/device/cuda/kernels/groups.cuh"
#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/mma.cuh"
#include "weft/device/cuda/table.h"

namespace weft::cuda {

namespace {

constexpr int tile = 128, depth = 64, stages = 3;
constexpr int tile_elements = tile * depth;  // of either factor
constexpr int warps_down = 2, warps_across = 4, threads = 32 * warps_down * warps_across;
constexpr int warp_rows = tile / warps_down, warp_columns = tile / warps_across;
constexpr std::size_t shared_bytes = std::size_t{2} * stages * tile_elements * sizeof(bf16);

// How a factor is stored: its sum elements side by side, or its rows (columns, for b).
enum class Along { sum, outer };

struct Problem {
  const bf16 *a, *b;
  void* c;
  const void* bias;
  int n, k;  // columns of c; length of the sum, where it is the same for all groups
  std::int64_t a_stride, b_stride, c_stride;
  std::int64_t b_group, c_group;
  const std::int32_t *counts, *offsets;
  int groups, rows;  // rows of c, where they are the same for all groups
  bool add, single_bias;
};

// Copies a tile's part [first, first + tile) x [p0, p0 + depth) into shared memory; zeros outside of [end) x [k).
template <Along along>
__device__ void copy_tile(bf16* to, const bf16* x, std::int64_t stride, int first, int end, int p0, int k) {
  if constexpr (along == Along::sum) {
    const SharedTile<depth / 8> shared{to};
#pragma unroll
    for (int i = 0; i < tile * depth / 8 / threads; ++i) {
      const int index = i * threads + static_cast<int>(threadIdx.x), r = index / (depth / 8),
                chunk = index % (depth / 8);
      const bool valid = first + r < end && p0 + chunk * 8 < k;
      copy_async(shared.at(r, chunk), valid ? x + (first + r) * stride + p0 + chunk * 8 : x, valid);
    }
  } else {
    const SharedTile<tile / 8> shared{to};
#pragma unroll
    for (int i = 0; i < tile * depth / 8 / threads; ++i) {
      const int index = i * threads + static_cast<int>(threadIdx.x), p = index / (tile / 8), chunk = index % (tile / 8);
      const bool valid = p0 + p < k && first + chunk * 8 < end;
      copy_async(shared.at(p, chunk), valid ? x + (p0 + p) * stride + first + chunk * 8 : x, valid);
    }
  }
}

template <class C>
__device__ void store_pair(C* c, float x, float y, bool second, bool add) {
  if (add) {
    x += widen(c[0]);
    if (second) y += widen(c[1]);
  }
  c[0] = narrow<C>(x);
  if (second) c[1] = narrow<C>(y);
}

template <Along a_along, Along b_along, bool sums_rows, class C>
__global__ void __launch_bounds__(threads, 2) grouped_kernel(Problem p) {
  extern __shared__ __align__(128) unsigned char shared[];
  bf16* tiles = reinterpret_cast<bf16*>(shared);
  const bf16 *a = p.a, *b = p.b;
  C* c = static_cast<C*>(p.c);
  int row, m, k = p.k, group;
  const int column = static_cast<int>(blockIdx.x) * tile;
  if constexpr (sums_rows) {
    group = static_cast<int>(blockIdx.z);
    row = static_cast<int>(blockIdx.y) * tile;
    m = p.rows;
    k = p.counts[group];
    a += p.offsets[group] * p.a_stride;
    b += p.offsets[group] * p.b_stride;
    c += group * p.c_group;
    if (k == 0 && p.add) return;
  } else {
    const TilePlace place = find_tile(p.counts, p.offsets, p.groups, tile, static_cast<int>(blockIdx.y));
    if (place.group < 0) return;
    group = place.group;
    row = place.first_row;
    m = place.count;
    a += place.offset * p.a_stride;
    b += group * p.b_group;
    c += place.offset * p.c_stride;
  }

  const auto a_tile = [&](int stage) { return tiles + stage * 2 * tile_elements; };
  const auto b_tile = [&](int stage) { return tiles + stage * 2 * tile_elements + tile_elements; };
  const auto copy = [&](int step) {
    if (step * depth < k) {
      copy_tile<a_along>(a_tile(step % stages), a, p.a_stride, row, m, step * depth, k);
      copy_tile<b_along>(b_tile(step % stages), b, p.b_stride, column, p.n, step * depth, k);
    }
    commit_copies();
  };
  constexpr int down = warp_rows / 16, across = warp_columns / 8;
  float sums[down][across][4] = {};
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_row = warp / warps_across * warp_rows, warp_column = warp % warps_across * warp_columns;

  for (int step = 0; step < stages - 1; ++step) copy(step);
  const int steps = (k + depth - 1) / depth;
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<stages - 2>();
    __syncthreads();
    copy(step + stages - 1);
    const bf16 *a_now = a_tile(step % stages), *b_now = b_tile(step % stages);
#pragma unroll
    for (int q = 0; q < depth; q += 16) {
      unsigned x[down][4], y[across / 2][4];
#pragma unroll
      for (int i = 0; i < down; ++i) {
        if constexpr (a_along == Along::sum)
          load_a(x[i], SharedTile<depth / 8>{const_cast<bf16*>(a_now)}, warp_row + 16 * i, q);
        else
          load_a_transposed(x[i], SharedTile<tile / 8>{const_cast<bf16*>(a_now)}, warp_row + 16 * i, q);
      }
#pragma unroll
      for (int j = 0; j < across / 2; ++j) {
        if constexpr (b_along == Along::sum)
          load_b(y[j], SharedTile<depth / 8>{const_cast<bf16*>(b_now)}, warp_column + 16 * j, q);
        else
          load_b_transposed(y[j], SharedTile<tile / 8>{const_cast<bf16*>(b_now)}, warp_column + 16 * j, q);
      }
#pragma unroll
      for (int i = 0; i < down; ++i)
#pragma unroll
        for (int j = 0; j < across; ++j) multiply_add(sums[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
    }
  }
  wait_for_copies<0>();

  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < down; ++i)
#pragma unroll
    for (int j = 0; j < across; ++j) {
      const int s = column + warp_column + 8 * j + lane % 4 * 2;
      if (s >= p.n) continue;
      const bool second = s + 1 < p.n;
      float bias[2] = {};
      if (p.bias != nullptr)
        for (int e = 0; e < (second ? 2 : 1); ++e) {
          const std::int64_t at = static_cast<std::int64_t>(group) * p.n + s + e;
          bias[e] = p.single_bias ? static_cast<const float*>(p.bias)[at] : widen(static_cast<const bf16*>(p.bias)[at]);
        }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = row + warp_row + 16 * i + lane / 4 + 8 * half;
        if (r < m)
          store_pair(c + r * p.c_stride + s, sums[i][j][2 * half] + bias[0], sums[i][j][2 * half + 1] + bias[1], second,
                     p.add);
      }
    }
}

template <Along a_along, Along b_along, bool sums_rows>
void run(CudaStream& stream, const Problem& p, DType c_type, dim3 grid) {
  with_storage("grouped_matmul", c_type, [&](auto type) {
    using C = typename decltype(type)::type;
    const auto kernel = grouped_kernel<a_along, b_along, sums_rows, C>;
    check_cuda(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
        "grouped_matmul");
    kernel<<<grid, threads, shared_bytes, stream.handle()>>>(p);
    launched("grouped_matmul");
  });
}

bool aligned(const Tensor& t) {
  return t.dtype == DType::bf16 && t.stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0;
}

}  // namespace

bool tensor_grouped_matmul(CudaStream& stream, const GroupedMatmul& op) {
  using Mode = GroupedMatmul::Mode;
  const std::int64_t n = op.w.shape[1], k = op.w.shape[2];
  const bool gradient = op.mode == Mode::weight_gradient;
  const Tensor& first = op.mode == Mode::forward ? op.x : op.y;
  const Tensor& second = gradient ? op.x : op.w;
  if (n % 8 != 0 || k % 8 != 0 || !aligned(first) || !aligned(second)) return false;
  Problem p = {};
  p.counts = op.groups.counts.as<std::int32_t>(), p.offsets = op.groups.offsets.as<std::int32_t>();
  p.groups = static_cast<int>(op.w.shape[0]);
  p.a = first.as<bf16>(), p.b = second.as<bf16>();
  p.a_stride = first.stride, p.b_stride = gradient ? second.stride : k;
  p.b_group = op.w.stride;
  p.bias = optional<const void>(op.bias), p.single_bias = op.bias.dtype == DType::f32;
  const auto tiles = [](std::int64_t size) { return static_cast<unsigned>(divide_up(size, tile)); };
  const auto row_tiles = static_cast<unsigned>(op.x.shape[0] / tile + p.groups);  // a group may end within a tile
  switch (op.mode) {
    case Mode::forward:
      p.c = op.y.data, p.c_stride = op.y.stride, p.n = static_cast<int>(n), p.k = static_cast<int>(k);
      run<Along::sum, Along::sum, false>(stream, p, op.y.dtype, dim3(tiles(n), row_tiles));
      break;
    case Mode::input_gradient:
      p.c = op.x.data, p.c_stride = op.x.stride, p.n = static_cast<int>(k), p.k = static_cast<int>(n);
      run<Along::sum, Along::outer, false>(stream, p, op.x.dtype, dim3(tiles(k), row_tiles));
      break;
    case Mode::weight_gradient:
      p.c = op.w.data, p.c_stride = k, p.c_group = op.w.stride, p.n = static_cast<int>(k);
      p.rows = static_cast<int>(n), p.add = op.store == Store::add;
      run<Along::outer, Along::outer, true>(stream, p, op.w.dtype,
                                            dim3(tiles(k), tiles(n), static_cast<unsigned>(p.groups)));
      break;
  }
  return true;
}

void grouped_matmul(Stream& stream, const GroupedMatmul& op) {
  check_arguments("grouped_matmul", op);
  require(op.w.shape[0] < 65536 && op.x.shape[0] < 1 << 22, "grouped_matmul",
          "more than 65535 groups or 4 million rows");
  if (op.w.shape[0] == 0 || op.w.shape[1] == 0 || op.w.shape[2] == 0) return;
  if (hopper_grouped_matmul(cuda_stream(stream), op)) return;
  if (!tensor_grouped_matmul(cuda_stream(stream), op)) tile_grouped_matmul(cuda_stream(stream), op);
}

}  // namespace weft::cuda
