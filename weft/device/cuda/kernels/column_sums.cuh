// Sums down the rows of something computed on the way. Rows are cut into chunks that their number alone decides; the sums
// of chunks are added in order.
#pragma once

#include "weft/device/cuda/kernels/launch_hopper.cuh"
#include "weft/device/operations/store.h"

namespace weft::cuda {

constexpr int column_width = 64, column_lanes = 16;  // of a block: columns, and rows that are added side by side
constexpr std::int64_t most_row_chunks = 128, least_row_chunk = 64;

// The sum of f(r, c) for r in [begin, end): row by row on each lane, then lane by lane. For lane 0.
template <class F>
__device__ float sum_of_rows(const F& f, std::int64_t begin, std::int64_t end, std::int64_t c, bool inside) {
  __shared__ float parts[column_lanes][column_width];
  float sum = 0;
  if (inside)
    for (std::int64_t r = begin + threadIdx.y; r < end; r += column_lanes) sum += f(r, c);
  __syncthreads();
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0) return 0;
  for (int lane = 1; lane < column_lanes; ++lane) sum += parts[lane][threadIdx.x];
  return sum;
}

template <class F>
__global__ void sum_chunks(F f, std::int64_t rows, std::int64_t chunk, std::int64_t columns, const std::int32_t* in_use,
                           float* parts) {
  const std::int64_t c = blockIdx.x * static_cast<std::int64_t>(column_width) + threadIdx.x;
  const std::int64_t used = used_rows(in_use, rows), begin = blockIdx.y * chunk;
  const std::int64_t end = begin + chunk < used ? begin + chunk : used;
  const float sum = sum_of_rows(f, begin, end, c, c < columns);
  if (threadIdx.y == 0 && c < columns) parts[blockIdx.y * columns + c] = sum;
}

struct PartsOfRows {
  const float* parts;
  std::int64_t columns;
  __device__ float operator()(std::int64_t r, std::int64_t c) const { return parts[r * columns + c]; }
};

template <class Y>
__global__ void sum_parts(PartsOfRows part, std::int64_t chunks, Y* y, bool add) {
  const std::int64_t c = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  await_previous();
  const float sum = sum_of_rows(part, 0, chunks, c, c < part.columns);
  if (threadIdx.y == 0 && c < part.columns) y[c] = narrow<Y>(add ? widen(y[c]) + sum : sum);
}

// queue_chunks(chunks, parts) sums each chunk of rows into parts [chunks, columns].
template <class Y, class QueueChunks>
void sum_by_chunks(const char* name, CudaStream& stream, std::int64_t rows, std::int64_t chunk, std::int64_t columns,
                   Y* y, Store store, const QueueChunks& queue_chunks) {
  if (columns == 0) return;
  const std::int64_t chunks = divide_up(rows, chunk);
  float* parts = stream.scratch_of<float>(std::max<std::int64_t>(chunks, 1) * columns);
  // Narrow blocks find room sooner beside the last chunks.
  const dim3 block(column_width / 2, column_lanes);
  const dim3 grid(static_cast<unsigned>(divide_up(columns, block.x)));
  const PartsOfRows of_chunks{parts, columns};
  const bool add = store == Store::add;
  if (chunks == 0) {
    sum_parts<Y><<<grid, block, 0, stream.handle()>>>(of_chunks, 0, y, add);
    return launched(name);
  }
  queue_chunks(static_cast<unsigned>(chunks), parts);
  launched(name);
  launch_behind(name, stream, sum_parts<Y>, grid, block, 0, of_chunks, chunks, y, add);
}

template <class Y, class F>
void sum_columns(const char* name, CudaStream& stream, const F& f, std::int64_t rows, std::int64_t columns,
                 const std::int32_t* in_use, Y* y, Store store) {
  const std::int64_t chunk = std::max(least_row_chunk, divide_up(rows, most_row_chunks));
  sum_by_chunks(name, stream, rows, chunk, columns, y, store, [&](unsigned chunks, float* parts) {
    const dim3 grid(static_cast<unsigned>(divide_up(columns, column_width)), chunks);
    sum_chunks<<<grid, dim3(column_width, column_lanes), 0, stream.handle()>>>(f, rows, chunk, columns, in_use, parts);
  });
}

// Eight columns a thread. f.read(r, c) reads what is needed of row r and the columns from c, f.add(words, sum) adds their
// terms; F::at_once rows are read before they are added. Rows of a chunk on `row_lanes` lanes, then lane by lane.
constexpr int row_lanes = 8, block_columns = 32 * pack;
constexpr std::int64_t most_packed_chunks = 64, least_packed_chunk = 128;
template <class F>
__global__ void __launch_bounds__(32 * row_lanes, 4)
    sum_packed_chunks(F f, std::int64_t rows, std::int64_t chunk, std::int64_t columns, float* parts) {
  static_assert(block_columns == 32 * row_lanes);  // a thread a column in the end
  __shared__ float lane_sums[row_lanes][block_columns];
  let_next_start();
  const std::int64_t first = blockIdx.x * static_cast<std::int64_t>(block_columns), c = first + threadIdx.x * pack;
  const std::int64_t begin = blockIdx.y * chunk, end = begin + chunk < rows ? begin + chunk : rows;
  float sum[pack] = {};
  for (std::int64_t r = begin + threadIdx.y; c < columns && r < end; r += row_lanes * F::at_once) {
    typename F::Words words[F::at_once];
#pragma unroll
    for (int i = 0; i < F::at_once; ++i)
      if (r + i * row_lanes < end) words[i] = f.read(r + i * row_lanes, c);
#pragma unroll
    for (int i = 0; i < F::at_once; ++i)
      if (r + i * row_lanes < end) f.add(words[i], sum);
  }
#pragma unroll
  for (int i = 0; i < pack; ++i) lane_sums[threadIdx.y][threadIdx.x * pack + i] = sum[i];
  __syncthreads();
  const int at = static_cast<int>(threadIdx.y) * 32 + static_cast<int>(threadIdx.x);
  if (first + at >= columns) return;
  float total = lane_sums[0][at];
#pragma unroll
  for (int lane = 1; lane < row_lanes; ++lane) total += lane_sums[lane][at];
  parts[blockIdx.y * columns + first + at] = total;
}

template <class Y, class F>
void sum_packed_columns(const char* name, CudaStream& stream, const F& f, std::int64_t rows, std::int64_t columns, Y* y,
                        Store store) {
  const std::int64_t chunk = std::max(least_packed_chunk, divide_up(rows, most_packed_chunks));
  sum_by_chunks(name, stream, rows, chunk, columns, y, store, [&](unsigned chunks, float* parts) {
    const dim3 grid(static_cast<unsigned>(divide_up(columns, block_columns)), chunks);
    sum_packed_chunks<<<grid, dim3(32, row_lanes), 0, stream.handle()>>>(f, rows, chunk, columns, parts);
  });
}

}  // namespace weft::cuda
