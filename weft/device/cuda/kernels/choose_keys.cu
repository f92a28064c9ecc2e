// The indexer's choice. A block takes queries in turn: scores of all keys that one sees, then the score of the last that is
// kept, digit by digit, then the keys in order.
#include "weft/device/cuda/kernels/sparse.cuh"
#include "weft/device/cuda/table.h"

namespace weft::cuda {

namespace {

constexpr std::int64_t most_blocks = 528;

// Unsigned numbers in the order of the floats; no number counts as the least.
__device__ unsigned ordered(float x) {
  if (x != x) x = -INFINITY;
  if (x == 0) x = 0;  // zeros of both signs are equal
  const unsigned bits = __float_as_uint(x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// The kept-th largest of scores, and how many equal to it are kept. counts: [256] in shared memory.
__device__ unsigned last_kept(const unsigned* scores, int seen, int kept, unsigned* counts, int& equal) {
  __shared__ unsigned digit_of, left_of;
  unsigned prefix = 0, left = static_cast<unsigned>(kept);
  for (int shift = 24; shift >= 0; shift -= 8) {
    __syncthreads();
    counts[threadIdx.x] = 0;
    __syncthreads();
    const unsigned above = shift == 24 ? 0u : ~0u << (shift + 8);
    for (int j = static_cast<int>(threadIdx.x); j < seen; j += sparse_threads)
      if ((scores[j] & above) == prefix) atomicAdd(&counts[scores[j] >> shift & 255u], 1u);  // integers: no order
    __syncthreads();
    if (threadIdx.x == 0) {
      unsigned digit = 255, rest = left;
      while (counts[digit] < rest) rest -= counts[digit--];
      digit_of = digit;
      left_of = rest;
    }
    __syncthreads();
    prefix |= digit_of << shift;
    left = left_of;
  }
  equal = static_cast<int>(left);
  return prefix;
}

template <class T>
__global__ void choose_kernel(IndexerArguments<T> x, const std::int32_t* boundaries, int length,
                              Rows<std::int32_t> keys, int K, unsigned* room) {
  extern __shared__ float shared[];  // the query and its weights
  __shared__ unsigned counts[sparse_threads];
  __shared__ int kept_of_warp[sparse_warps], equal_of_warp[sparse_warps];
  const int me = static_cast<int>(threadIdx.x), lane = me % 32, warp = me / 32, wide = x.heads * x.dim;
  unsigned* scores = room + blockIdx.x * static_cast<std::int64_t>(x.tokens);
  for (int i = static_cast<int>(blockIdx.x); i < x.tokens; i += static_cast<int>(gridDim.x)) {
    const int t = x.tokens - 1 - i;  // later queries see more keys
    const int begin = boundaries != nullptr ? boundaries[t] : t - t % length, seen = t + 1 - begin;
    std::int32_t* out = keys[t];
    if (seen <= K) {
      for (int j = me; j < K; j += sparse_threads) out[j] = j < seen ? begin + j : -1;
      continue;
    }
    __syncthreads();
    for (int e = me; e < wide; e += sparse_threads) shared[e] = widen(x.q[t][e]);
    for (int h = me; h < x.heads; h += sparse_threads) shared[wide + h] = x.scale * widen(x.w[t][h]);
    __syncthreads();
    for (int j = me; j < seen; j += sparse_threads) {
      const T* k = x.k[begin + j];
      float score = 0;
      for (int h = 0; h < x.heads; ++h) {
        float product = 0;
        for (int e = 0; e < x.dim; ++e) product += shared[h * x.dim + e] * widen(k[e]);
        score += shared[wide + h] * (product < 0 ? 0.0f : product);
      }
      scores[j] = ordered(score);
    }
    __syncthreads();
    int equal = 0;
    const unsigned last = last_kept(scores, seen, K, counts, equal);
    int kept = 0;  // so far
    for (int j0 = 0; j0 < seen; j0 += sparse_threads) {
      const int j = j0 + me;
      const unsigned score = j < seen ? scores[j] : 0u;
      const bool same = j < seen && score == last, better = j < seen && score > last;
      const unsigned same_bits = __ballot_sync(all_lanes, same), better_bits = __ballot_sync(all_lanes, better);
      __syncthreads();
      if (lane == 0) {
        equal_of_warp[warp] = __popc(same_bits);
        kept_of_warp[warp] = __popc(better_bits);
      }
      __syncthreads();
      // Of equal ones the first `equal` are kept: how many of them are before this warp decides which.
      int at = kept, left = equal, total = 0, remaining = equal;
      for (int w = 0; w < sparse_warps; ++w) {
        const int taken = min(equal_of_warp[w], remaining);
        if (w < warp) {
          at += kept_of_warp[w] + taken;
          left -= taken;
        }
        remaining -= taken;
        total += kept_of_warp[w] + taken;
      }
      const unsigned below = (1u << lane) - 1u;
      const int rank = __popc(same_bits & below);
      if (better || (same && rank < left)) out[at + __popc(better_bits & below) + min(rank, left)] = begin + j;
      kept += total;
      equal = remaining;
    }
  }
}

}  // namespace

void choose_keys(Stream& stream, const ChooseKeys& op) {
  constexpr const char* name = "choose_keys";
  const std::int64_t tokens = op.indexer.q.rows();
  if (tokens == 0) return;
  check_arguments(name, op);
  CudaStream& s = cuda_stream(stream);
  const std::int64_t blocks = std::min(tokens, most_blocks);
  unsigned* room = s.scratch_of<unsigned>(blocks * tokens);
  with_storage(name, op.indexer.q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const IndexerArguments<T> x = indexer_arguments<T>(op.indexer);
    run_sparse(name, s, choose_kernel<T>, dim3(static_cast<unsigned>(blocks)), op.indexer.heads * (op.indexer.dim + 1),
               x, optional<const std::int32_t>(op.boundaries), static_cast<int>(op.length),
               rows_of<std::int32_t>(op.keys), static_cast<int>(columns_of(op.keys)), room);
  });
}

}  // namespace weft::cuda
