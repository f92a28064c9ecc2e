// route_rows and arrange_rows: counting sorts. Slots are cut into parts, one per block, and a part into runs, one per warp.
// Every part counts its experts; then every part adds up the counts of all, which gives the first row of each expert and
// where its own slots go, and places them in their order.
#include "weft/device/argument_checks.h"
#include "weft/device/cuda/kernels/launch_hopper.cuh"
#include "weft/device/cuda/kernels/reduce.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/rows.h"

namespace weft::cuda {

namespace {

constexpr std::int64_t least_part = 512, most_parts = 128;
constexpr int part_threads = 256, scan_threads = 1024;
constexpr std::size_t plain_shared_bytes = 40 << 10;  // beyond, a kernel must ask for it

__global__ void __launch_bounds__(part_threads)
    count_parts(const std::int32_t* indices, std::int64_t slots, std::int64_t part, int experts, std::int32_t* counts) {
  extern __shared__ std::int32_t count[];
  let_next_start();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += part_threads) count[e] = 0;
  __syncthreads();
  const std::int64_t begin = blockIdx.x * part, end = begin + part < slots ? begin + part : slots;
#pragma unroll 2
  for (std::int64_t slot = begin + threadIdx.x; slot < end; slot += part_threads)
    if (indices[slot] >= 0) atomicAdd(&count[indices[slot]], 1);
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += part_threads)
    counts[blockIdx.x * static_cast<std::int64_t>(experts) + e] = count[e];
}

// The sum of x over the threads before this one, and over all of them.
template <int most_threads>
__device__ int scan_block(int x, int& total) {
  __shared__ int warps[most_threads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = x;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int below = __shfl_up_sync(all_lanes, sum, step);
    if (lane >= step) sum += below;
  }
  __syncthreads();
  if (lane == 31) warps[warp] = sum;
  __syncthreads();
  int before = 0;
  total = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) {
    if (w < warp) before += warps[w];
    total += warps[w];
  }
  return before + sum - x;
}

// Counts of sources [parts, experts] become the rows at which each one's rows of an expert begin. One block; a warp goes
// over the sources of an expert.
__global__ void __launch_bounds__(scan_threads)
    scan_parts(std::int32_t* next, std::int64_t parts, int experts, int alignment, std::int32_t* counts,
               std::int32_t* offsets, std::int32_t* in_use, std::int32_t* row_source, std::int64_t rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  constexpr int warps = scan_threads / 32;
  const auto room_for = [&](int count) { return (count + alignment - 1) / alignment * alignment; };
  for (int e = warp; e < experts; e += warps) {
    int count = 0;
    for (std::int64_t p = lane; p < parts; p += 32) count += next[p * experts + e];
    count = warp_sum(count);
    if (lane == 0) counts[e] = count;
  }
  __syncthreads();
  int base = 0;  // rows of earlier experts
  for (int e0 = 0; e0 < experts; e0 += scan_threads) {
    const int e = e0 + static_cast<int>(threadIdx.x);
    int total = 0;
    const int first = base + scan_block<scan_threads>(e < experts ? room_for(counts[e]) : 0, total);
    base += total;
    if (e < experts) offsets[e] = first;
  }
  if (threadIdx.x == 0) {
    offsets[experts] = base;
    *in_use = base;
  }
  __syncthreads();
  for (int e = warp; e < experts; e += warps) {
    int at = offsets[e];
    const int end = at + room_for(counts[e]);
    for (std::int64_t p0 = 0; p0 < parts; p0 += 32) {
      const std::int64_t p = p0 + lane;
      const int here = p < parts ? next[p * experts + e] : 0;
      int sum = here;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int below = __shfl_up_sync(all_lanes, sum, step);
        if (lane >= step) sum += below;
      }
      if (p < parts) next[p * experts + e] = at + sum - here;
      at += __shfl_sync(all_lanes, sum, 31);
    }
    for (std::int64_t row = at + lane; row < end && row < rows; row += 32) row_source[row] = -1;
  }
}

struct Routed {
  const std::int32_t *indices, *part_counts;  // [slots]; [parts, experts]
  std::int64_t slots, part, rows;
  int parts, experts, alignment, capacity;  // capacity > 0: every expert has that many rows
  std::int32_t *counts, *offsets, *in_use, *row_of_slot, *slot_of_row;
};

// The lanes of a warp that hold the same key, by its lowest bits.
__device__ unsigned lanes_like(int key, int bits) {
  unsigned same = all_lanes;
  for (int b = 0; b < bits; ++b) {
    const bool one = (key >> b & 1) != 0;
    const unsigned ones = __ballot_sync(all_lanes, one);
    same &= one ? ones : ~ones;
  }
  return same;
}

// A block per part. Shared memory: next [warps][experts], the row of each run's next slot of an expert; then where an
// expert's rows without slots begin and end.
__global__ void __launch_bounds__(part_threads) place_slots(Routed p, int bits) {
  extern __shared__ std::int32_t next[];
  __shared__ int before_of[part_threads], all_of[part_threads];
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int lane = thread % 32, warp = thread / 32, warps = threads / 32, here = static_cast<int>(blockIdx.x);
  std::int32_t *mine = next + warp * p.experts, *empty = next + warps * p.experts, *beyond = empty + p.experts;
  const std::int64_t run = p.part / warps, begin = here * p.part + warp * run;
  const std::int64_t end = begin + run < p.slots ? begin + run : p.slots;
  for (int e = lane; e < p.experts; e += 32) mine[e] = 0;
  __syncwarp();
  for (std::int64_t slot = begin + lane; slot < end; slot += 32)
    if (p.indices[slot] >= 0) atomicAdd(&mine[p.indices[slot]], 1);
  await_previous();
  // As many experts at once as there are threads, or several threads per expert.
  const int wide = threads < p.experts ? threads : p.experts, slices = threads / wide;
  int base = 0;  // rows of earlier experts
  for (int e0 = 0; e0 < p.experts; e0 += wide) {
    const int slice = thread / wide, e = e0 + thread % wide;
    int before = 0, all = 0;
    if (e < p.experts && slice < slices) {
#pragma unroll 8
      for (int q = slice; q < p.parts; q += slices) {
        const int count = p.part_counts[q * static_cast<std::int64_t>(p.experts) + e];
        before += q < here ? count : 0;
        all += count;
      }
    }
    before_of[thread] = before;
    all_of[thread] = all;
    __syncthreads();
    const bool counts = slice == 0 && e < p.experts;
    for (int s = 1; counts && s < slices; ++s) {
      before += before_of[s * wide + thread];
      all += all_of[s * wide + thread];
    }
    const int count = p.capacity > 0 ? p.capacity : all;
    const int room = counts ? (count + p.alignment - 1) / p.alignment * p.alignment : 0;
    int total = 0;
    const int first = base + scan_block<part_threads>(room, total);
    base += total;
    if (!counts) continue;
    for (int w = 0, at = first + before; w < warps; ++w) {
      const int slots = next[w * p.experts + e];
      next[w * p.experts + e] = at;
      at += slots;
    }
    empty[e] = first + all;
    beyond[e] = first + room;
    if (here == 0) p.counts[e] = count, p.offsets[e] = first;
  }
  if (here == 0 && thread == 0) {
    p.offsets[p.experts] = base;
    if (p.in_use != nullptr) *p.in_use = base;
  }
  __syncthreads();
  for (int e = here * warps + warp; e < p.experts; e += p.parts * warps)
    for (std::int64_t row = empty[e] + lane; row < beyond[e] && row < p.rows; row += 32) p.slot_of_row[row] = -1;
  for (std::int64_t at = begin; at < end; at += 32) {
    const std::int64_t slot = at + lane;
    const int expert = slot < end ? p.indices[slot] : -1;
    const unsigned same = lanes_like(expert, bits);
    const int before = __popc(same & ((1u << lane) - 1));
    const int row = expert >= 0 ? mine[expert] + before : -1;
    __syncwarp();
    if (expert >= 0 && before == 0) mine[expert] += __popc(same);
    __syncwarp();
    if (slot >= end) continue;
    p.row_of_slot[slot] = row;
    if (row >= 0 && row < p.rows) p.slot_of_row[row] = static_cast<std::int32_t>(slot);
  }
}

// received: where the rows of (source, expert) begin among those received; [sources, experts], in order.
__global__ void scan_received(const std::int32_t* source_counts, int pairs, std::int32_t* received,
                              std::int32_t* in_use) {
  int base = 0;
  for (int i0 = 0; i0 < pairs; i0 += scan_threads) {
    const int i = i0 + static_cast<int>(threadIdx.x);
    int total = 0;
    const int before = base + scan_block<scan_threads>(i < pairs ? source_counts[i] : 0, total);
    base += total;
    if (i < pairs) received[i] = before;
  }
  if (threadIdx.x == 0) *in_use = base;
}

// A block for each (source, expert).
__global__ void place_received(const std::int32_t* source_counts, const std::int32_t* received,
                               const std::int32_t* first_row, std::int32_t* received_of_row,
                               std::int32_t* row_of_received, std::int64_t rows, std::int64_t room) {
  const int count = source_counts[blockIdx.x], from = received[blockIdx.x], to = first_row[blockIdx.x];
  for (int i = threadIdx.x; i < count; i += static_cast<int>(blockDim.x)) {
    if (to + i < rows) received_of_row[to + i] = from + i;
    if (from + i < room) row_of_received[from + i] = to + i;
  }
}

}  // namespace

void route_rows(Stream& stream, const RouteRows& op) {
  constexpr const char* name = "route_rows";
  check_arguments(name, op);
  const std::int64_t slots = op.indices.shape.elements(), experts = op.counts.shape.elements();
  require(op.alignment < 1 << 20, name, "the alignment is a million or more");
  require(experts >= 1 && experts <= 8192, name, "the experts are none or more than 8192");
  CudaStream& s = cuda_stream(stream);
  // A warp needs room for a count of every expert.
  const int warps = experts <= 1024 ? part_threads / 32 : experts <= 4096 ? 4 : 2;
  const std::int64_t part = std::max(least_part, divide_up(divide_up(slots, most_parts), 32 * warps) * 32 * warps);
  const std::int64_t parts = std::max<std::int64_t>(divide_up(slots, part), 1);
  auto* part_counts = s.scratch_of<std::int32_t>(parts * experts);
  const Routed routed{op.indices.as<std::int32_t>(),
                      part_counts,
                      slots,
                      part,
                      op.slot_of_row.shape.elements(),
                      static_cast<int>(parts),
                      static_cast<int>(experts),
                      static_cast<int>(op.alignment),
                      static_cast<int>(op.capacity),
                      op.counts.as<std::int32_t>(),
                      op.offsets.as<std::int32_t>(),
                      optional<std::int32_t>(op.rows_in_use),
                      op.row_of_slot.as<std::int32_t>(),
                      op.slot_of_row.as<std::int32_t>()};
  const auto blocks = static_cast<unsigned>(parts);
  const std::size_t expert_bytes = static_cast<std::size_t>(experts) * sizeof(std::int32_t);
  count_parts<<<blocks, part_threads, expert_bytes, s.handle()>>>(routed.indices, slots, part, routed.experts,
                                                                  part_counts);
  launched(name);
  const std::size_t shared = static_cast<std::size_t>(warps + 2) * expert_bytes;
  if (shared > plain_shared_bytes)
    check_cuda(cudaFuncSetAttribute(place_slots, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
               name);
  int bits = 1;  // of the experts' numbers and -1
  while (std::int64_t{1} << bits < experts + 1) ++bits;
  launch_early(name, s, place_slots, dim3(blocks), dim3(static_cast<unsigned>(32 * warps)), shared, routed, bits);
}

void arrange_rows(Stream& stream, const ArrangeRows& op) {
  constexpr const char* name = "arrange_rows";
  check_arguments(name, op);
  const std::int64_t sources = op.source_counts.shape[0], experts = op.source_counts.shape[1];
  const std::int64_t pairs = sources * experts;
  require(pairs >= 1 && pairs < 1 << 24, name, "there are no sources or experts, or too many");
  CudaStream& s = cuda_stream(stream);
  auto* received = s.scratch_of<std::int32_t>(2 * pairs);
  std::int32_t* first_row = received + pairs;
  const auto* source_counts = op.source_counts.as<std::int32_t>();
  scan_received<<<1, scan_threads, 0, s.handle()>>>(source_counts, static_cast<int>(pairs), received,
                                                    op.received_in_use.as<std::int32_t>());
  launched(name);
  check_cuda(cudaMemcpyAsync(first_row, source_counts, static_cast<std::size_t>(pairs) * sizeof(std::int32_t),
                             cudaMemcpyDeviceToDevice, s.handle()),
             name);
  const std::int64_t rows = op.received_of_row.shape.elements();
  scan_parts<<<1, scan_threads, 0, s.handle()>>>(
      first_row, sources, static_cast<int>(experts), static_cast<int>(op.alignment), op.counts.as<std::int32_t>(),
      op.offsets.as<std::int32_t>(), op.rows_in_use.as<std::int32_t>(), op.received_of_row.as<std::int32_t>(), rows);
  launched(name);
  place_received<<<static_cast<unsigned>(pairs), 128, 0, s.handle()>>>(
      source_counts, received, first_row, op.received_of_row.as<std::int32_t>(), op.row_of_received.as<std::int32_t>(),
      rows, op.row_of_received.shape.elements());
  launched(name);
}

}  // namespace weft::cuda
