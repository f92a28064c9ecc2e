// Sums down the rows of something computed on the way. Rows are cut into chunks that their number alone decides; the sums
// of chunks are added in order.
#pragma once

#include "weft/device/cuda/kernels/launch_hopper.cuh"
#include "weft/device/operations/store.h"

namespace weft::cuda {

constexpr int column_width = 64, column_lanes = 16;  // of a block: columns, and rows that are added side by side
constexpr std::int64_t most_row_chunks = 128, least_row_chunk = 64;

// The sum of f(r, c) for r in [begin, end): row by row on each lane, then lane by lane. For lane 0. unrolled: rows that a
// lane reads before it adds them.
template <int unrolled = 4, class F>
__device__ float sum_of_rows(const F& f, std::int64_t begin, std::int64_t end, std::int64_t c, bool inside) {
  __shared__ float parts[column_lanes][column_width];
  float sum = 0;
  if (inside)
#pragma unroll(unrolled)
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
  const float sum = sum_of_rows<8>(part, 0, chunks, c, c < part.columns);
  if (threadIdx.y == 0 && c < part.columns) y[c] = narrow<Y>(add ? widen(y[c]) + sum : sum);
}

// queue_chunks(parts) sums each chunk of rows into parts [chunks, columns].
template <class Y, class QueueChunks>
void sum_by_chunks(const char* name, CudaStream& stream, std::int64_t chunks, std::int64_t columns, Y* y, Store store,
                   const QueueChunks& queue_chunks) {
  if (columns == 0) return;
  float* parts = stream.scratch_of<float>(std::max<std::int64_t>(chunks, 1) * columns);
  // Narrow blocks find room beside the last chunks.
  const dim3 block(column_width / 4, column_lanes);
  const dim3 grid(static_cast<unsigned>(divide_up(columns, block.x)));
  const PartsOfRows of_chunks{parts, columns};
  const bool add = store == Store::add;
  if (chunks == 0) {
    sum_parts<Y><<<grid, block, 0, stream.handle()>>>(of_chunks, 0, y, add);
    return launched(name);
  }
  queue_chunks(parts);
  launched(name);
  launch_early(name, stream, sum_parts<Y>, grid, block, 0, of_chunks, chunks, y, add);
}

template <class Y, class F>
void sum_columns(const char* name, CudaStream& stream, const F& f, std::int64_t rows, std::int64_t columns,
                 const std::int32_t* in_use, Y* y, Store store) {
  const std::int64_t chunk = std::max(least_row_chunk, divide_up(rows, most_row_chunks));
  const std::int64_t chunks = divide_up(rows, chunk);
  sum_by_chunks(name, stream, chunks, columns, y, store, [&](float* parts) {
    const dim3 grid(static_cast<unsigned>(divide_up(columns, column_width)), static_cast<unsigned>(chunks));
    sum_chunks<<<grid, dim3(column_width, column_lanes), 0, stream.handle()>>>(f, rows, chunk, columns, in_use, parts);
  });
}

}  // namespace weft::cuda
