// route_rows and arrange_rows: counting sorts. Slots are cut into parts of a fixed length, one a warp; every part
// counts its experts, a scan turns counts into first rows, and every part places its slots in their order.
#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/reduce.cuh"
#include "weft/device/cuda/table.h"
#include "weft/device/operations/rows.h"

namespace weft::cuda {

namespace {

constexpr std::int64_t slots_a_part = 512;
constexpr int scan_threads = 1024;

__global__ void count_parts(const std::int32_t* indices, std::int64_t slots, int experts, std::int32_t* counts) {
  extern __shared__ std::int32_t count[];
  for (int e = threadIdx.x; e < experts; e += 32) count[e] = 0;
  __syncwarp();
  const std::int64_t begin = blockIdx.x * slots_a_part;
  const std::int64_t end = begin + slots_a_part < slots ? begin + slots_a_part : slots;
  for (std::int64_t slot = begin + threadIdx.x; slot < end; slot += 32)
    if (indices[slot] >= 0) atomicAdd(&count[indices[slot]], 1);
  __syncwarp();
  for (int e = threadIdx.x; e < experts; e += 32)
    counts[blockIdx.x * static_cast<std::int64_t>(experts) + e] = count[e];
}

// The sum of x over the threads before this one, and over all of them.
__device__ int scan_block(int x, int& total) {
  __shared__ int warps[scan_threads / 32];
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
  for (int w = 0; w < scan_threads / 32; ++w) {
    if (w < warp) before += warps[w];
    total += warps[w];
  }
  return before + sum - x;
}

// Counts of parts [parts, experts] become the rows at which each part's slots of an expert begin. One block; a warp goes
// over the parts of an expert. capacity > 0: every expert has that many rows.
__global__ void __launch_bounds__(scan_threads)
    scan_parts(std::int32_t* next, std::int64_t parts, int experts, int alignment, int capacity, std::int32_t* counts,
               std::int32_t* offsets, std::int32_t* in_use, std::int32_t* row_source, std::int64_t rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  constexpr int warps = scan_threads / 32;
  const auto room_for = [&](int count) { return (count + alignment - 1) / alignment * alignment; };
  for (int e = warp; e < experts; e += warps) {
    int count = 0;
    for (std::int64_t p = lane; p < parts; p += 32) count += next[p * experts + e];
    count = warp_sum(count);
    if (lane == 0) counts[e] = capacity > 0 ? capacity : count;
  }
  __syncthreads();
  int base = 0;  // rows of earlier experts
  for (int e0 = 0; e0 < experts; e0 += scan_threads) {
    const int e = e0 + static_cast<int>(threadIdx.x);
    int total = 0;
    const int first = base + scan_block(e < experts ? room_for(counts[e]) : 0, total);
    base += total;
    if (e < experts) offsets[e] = first;
  }
  if (threadIdx.x == 0) {
    offsets[experts] = base;
    if (in_use != nullptr) *in_use = base;
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

__global__ void place_slots(const std::int32_t* indices, std::int64_t slots, int experts, const std::int32_t* next,
                            std::int32_t* row_of_slot, std::int32_t* slot_of_row, std::int64_t rows) {
  extern __shared__ std::int32_t place[];
  const int lane = threadIdx.x;
  for (int e = lane; e < experts; e += 32) place[e] = next[blockIdx.x * static_cast<std::int64_t>(experts) + e];
  __syncwarp();
  const std::int64_t begin = blockIdx.x * slots_a_part;
  const std::int64_t end = begin + slots_a_part < slots ? begin + slots_a_part : slots;
  for (std::int64_t at = begin; at < end; at += 32) {
    const std::int64_t slot = at + lane;
    const int expert = slot < end ? indices[slot] : -1;
    const unsigned same = __match_any_sync(all_lanes, expert);
    const int before = __popc(same & ((1u << lane) - 1));
    const int row = expert >= 0 ? place[expert] + before : -1;
    __syncwarp();
    if (expert >= 0 && before == 0) place[expert] += __popc(same);
    __syncwarp();
    if (slot >= end) continue;
    row_of_slot[slot] = row;
    if (row >= 0 && row < rows) slot_of_row[row] = static_cast<std::int32_t>(slot);
  }
}

// received: where the rows of (source, expert) begin among those received; [sources, experts], in order.
__global__ void scan_received(const std::int32_t* source_counts, int pairs, std::int32_t* received,
                              std::int32_t* in_use) {
  int base = 0;
  for (int i0 = 0; i0 < pairs; i0 += scan_threads) {
    const int i = i0 + static_cast<int>(threadIdx.x);
    int total = 0;
    const int before = base + scan_block(i < pairs ? source_counts[i] : 0, total);
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
  for (const Tensor* tensor : {&op.indices, &op.counts, &op.offsets, &op.row_of_slot, &op.slot_of_row})
    require(tensor->dtype == DType::i32 && tensor->contiguous(), name, "needs contiguous i32 tensors");
  const std::int64_t slots = op.indices.shape.elements(), experts = op.counts.shape.elements();
  require(op.offsets.shape.elements() == experts + 1, name, "offsets are not [E + 1]");
  require(op.row_of_slot.shape.elements() == slots, name, "row_of_slot is not [T, k]");
  require(op.alignment >= 1 && op.alignment < 1 << 20, name, "the alignment is not positive");
  require(experts >= 1 && experts <= 8192, name, "the experts are none or more than 8192");
  CudaStream& s = cuda_stream(stream);
  const std::int64_t parts = divide_up(slots, slots_a_part), rows = op.slot_of_row.shape.elements();
  auto* next = s.scratch_of<std::int32_t>(std::max<std::int64_t>(parts, 1) * experts);
  const std::size_t shared = static_cast<std::size_t>(experts) * sizeof(std::int32_t);
  const int e = static_cast<int>(experts);
  if (parts > 0) {
    count_parts<<<static_cast<unsigned>(parts), 32, shared, s.handle()>>>(op.indices.as<std::int32_t>(), slots, e,
                                                                          next);
    launched(name);
  }
  scan_parts<<<1, scan_threads, 0, s.handle()>>>(
      next, parts, e, static_cast<int>(op.alignment), static_cast<int>(op.capacity), op.counts.as<std::int32_t>(),
      op.offsets.as<std::int32_t>(), optional<std::int32_t>(op.rows_in_use), op.slot_of_row.as<std::int32_t>(), rows);
  launched(name);
  if (parts == 0) return;
  place_slots<<<static_cast<unsigned>(parts), 32, shared, s.handle()>>>(op.indices.as<std::int32_t>(), slots, e, next,
                                                                        op.row_of_slot.as<std::int32_t>(),
                                                                        op.slot_of_row.as<std::int32_t>(), rows);
  launched(name);
}

void arrange_rows(Stream& stream, const ArrangeRows& op) {
  constexpr const char* name = "arrange_rows";
  for (const Tensor* tensor : {&op.source_counts, &op.counts, &op.offsets, &op.received_of_row, &op.row_of_received,
                               &op.rows_in_use, &op.received_in_use})
    require(tensor->dtype == DType::i32, name, "needs i32 tensors");
  require(op.source_counts.shape.dims() == 2 && op.source_counts.contiguous(), name,
          "source_counts is not [sources, experts]");
  const std::int64_t sources = op.source_counts.shape[0], experts = op.source_counts.shape[1];
  require(op.counts.shape.elements() == experts && op.offsets.shape.elements() == experts + 1, name,
          "counts and offsets do not fit the experts");
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
      first_row, sources, static_cast<int>(experts), static_cast<int>(op.alignment), 0, op.counts.as<std::int32_t>(),
      op.offsets.as<std::int32_t>(), op.rows_in_use.as<std::int32_t>(), op.received_of_row.as<std::int32_t>(), rows);
  launched(name);
  place_received<<<static_cast<unsigned>(pairs), 128, 0, s.handle()>>>(
      source_counts, received, first_row, op.received_of_row.as<std::int32_t>(), op.row_of_received.as<std::int32_t>(),
      rows, op.row_of_received.shape.elements());
  launched(name);
}

}  // namespace weft::cuda
