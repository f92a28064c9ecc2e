// What the kernels of sparse attention share: a block of 256 threads per query, or per key; a warp for each product of rows.
#pragma once

#include "weft/device/argument_checks.h"
#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/reduce.cuh"

namespace weft::cuda {

constexpr int sparse_threads = 256, sparse_warps = sparse_threads / 32;

template <class T>
__device__ inline float warp_dot(const T* a, const T* b, int count) {
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < count; i += 32) sum += widen(a[i]) * widen(b[i]);
  return warp_sum(sum);
}

template <class T>
struct IndexerArguments {
  Rows<const T> q, k, w;
  int heads, dim, tokens;
  float scale;
};
template <class T>
IndexerArguments<T> indexer_arguments(const Indexer& x) {
  return {rows_of<const T>(x.q),   rows_of<const T>(x.k),        rows_of<const T>(x.w),      static_cast<int>(x.heads),
          static_cast<int>(x.dim), static_cast<int>(x.q.rows()), static_cast<float>(x.scale)};
}

// The keys of every query: ascending token indices, -1 after the last.
struct ChosenKeys {
  Rows<const std::int32_t> keys;
  int K, tokens, length;  // length: of sequences; no query sees beyond its own
  // How many of query t.
  __device__ int count(int t) const {
    const std::int32_t* row = keys[t];
    int low = 0, high = K;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (row[middle] >= 0)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }
  // Where key j is in the row of query t; -1: not there.
  __device__ int place(int t, int j) const {
    const std::int32_t* row = keys[t];
    int low = 0, high = K;
    while (low < high) {  // the first that is not below j; what follows the last counts as above
      const int middle = (low + high) / 2;
      if (row[middle] >= 0 && row[middle] < j)
        low = middle + 1;
      else
        high = middle;
    }
    return low < K && row[low] == j ? low : -1;
  }
};

// Calls body(hits) for up to 256 queries that chose key j at a time, in ascending order, by all threads; query and place
// of each are in shared memory.
struct Hits {
  int* query;  // [256]
  int* place;  // [256]
  int count;
};
template <class Body>
__device__ inline void for_queries_of_key(const ChosenKeys& chosen, int j, const Body& body) {
  __shared__ int queries[sparse_threads], places[sparse_threads], counts[sparse_warps];
  const int me = static_cast<int>(threadIdx.x), lane = me % 32;
  const int end = min((j / chosen.length + 1) * chosen.length, chosen.tokens);
  for (int t0 = j; t0 < end; t0 += sparse_threads) {
    const int t = t0 + me, place = t < end ? chosen.place(t, j) : -1;
    const unsigned warp_hits = __ballot_sync(all_lanes, place >= 0);
    __syncthreads();  // the hits before these are no longer needed
    if (lane == 0) counts[me / 32] = __popc(warp_hits);
    __syncthreads();
    int before = 0, all = 0;
    for (int w = 0; w < sparse_warps; ++w) {
      if (w < me / 32) before += counts[w];
      all += counts[w];
    }
    if (place >= 0) {
      const int at = before + __popc(warp_hits & ((1u << lane) - 1u));
      queries[at] = t;
      places[at] = place;
    }
    __syncthreads();
    if (all > 0) body(Hits{queries, places, all});
  }
}

inline ChosenKeys chosen_keys(const char* name, const SparseAttention& op) {
  const Attention& x = op.attention;
  const std::int64_t tokens = x.q.rows();
  const auto fits = [name](bool condition, const char* why) { require(condition, name, why); };
  fits(columns_of(op.keys) <= 16384, "GPUs do not support more than 16384 keys per query yet");
  fits(x.heads <= 65535, "more than 65535 heads");
  // Documents may be of any length: without sequences of one length, all tokens are one.
  const std::int64_t length = !x.boundaries.given() && x.length > 0 ? x.length : tokens;
  return {rows_of<const std::int32_t>(op.keys), static_cast<int>(columns_of(op.keys)), static_cast<int>(tokens),
          static_cast<int>(length)};
}

// Runs a kernel with `floats` of shared memory.
template <class Kernel, class... Arguments>
void run_sparse(const char* name, CudaStream& stream, Kernel kernel, dim3 grid, std::int64_t floats,
                const Arguments&... arguments) {
  // In fours: the compiler reads as many at once, before it asks whether that many are there.
  const int bytes = static_cast<int>(divide_up(floats, 4) * static_cast<std::int64_t>(4 * sizeof(float)));
  launch_shared(name, stream, kernel, grid, sparse_threads, bytes, arguments...);
}

}  // namespace weft::cuda
