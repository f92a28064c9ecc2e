// What recurrences share: gates, running sums of a warp, and the gradients of parameters that every head has one of.
#pragma once

#include "weft/device/cuda/kernels/launch.cuh"
#include "weft/device/cuda/kernels/reduce.cuh"
#include "weft/device/cuda/kernels/scan.cuh"

namespace weft::cuda {

__device__ inline float softplus(float x) { return x > 30.0f ? x + expf(-x) : log1pf(expf(x)); }

// The sum over lanes up to and with this one.
__device__ inline double warp_scan(double x) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const double before = __shfl_up_sync(all_lanes, x, static_cast<unsigned>(step));
    if (lane >= step) x += before;
  }
  return x;
}

// A warp for each head of a chunk: blocks of (32, warps_of_heads).
constexpr int warps_of_heads = 8;
__device__ inline int head_of_warp() { return static_cast<int>(blockIdx.y * warps_of_heads + threadIdx.y); }
inline dim3 heads_of_chunks(const ChunkCut& cut, int heads) {
  return dim3(static_cast<unsigned>(cut.count()), static_cast<unsigned>(divide_up(heads, warps_of_heads)));
}

// What such a warp works on.
struct HeadOfChunk {
  int c, begin, n, lane;
  float bias;
  double rate;      // of decay: -exp(A_log)
  std::int64_t at;  // where the chunk's tokens are in [heads][T]
  template <class Arguments>
  __device__ HeadOfChunk(const Arguments& x, int head)
      : c(static_cast<int>(blockIdx.x)),
        begin(x.cut.begin(c)),
        n(x.cut.size(c)),
        lane(static_cast<int>(threadIdx.x)),
        bias(x.dt_bias[head]),
        rate(-exp(static_cast<double>(x.A_log[head]))),
        at(static_cast<std::int64_t>(head) * x.cut.tokens + begin) {}
};

// Running sums, to sums [heads][T], of the logarithms of decay that log_decay(t) gives for every token t of the chunk; then
// store(t, start, end): the decay from the state before the chunk to t, and from t to the state after it.
template <class LogDecay, class StoreDecays>
__device__ __forceinline__ void make_decays(const ChunkCut& cut, const HeadOfChunk& h, double* sums,
                                            const LogDecay& log_decay, const StoreDecays& store) {
  double before = 0;
  for (int t0 = 0; t0 < h.n; t0 += 32) {
    const int t = t0 + h.lane;
    double own = 0;
    if (t < h.n) own = log_decay(t);
    const double sum = before + warp_scan(own);
    if (t < h.n) sums[h.at + t] = sum;
    before = __shfl_sync(all_lanes, sum, 31);
  }
  const int end_first = cut.first(h.begin, h.n - 1);
  for (int t = h.lane; t < h.n; t += 32) {  // what this lane wrote above
    const double sum = sums[h.at + t];
    const bool continues = cut.boundaries == nullptr || cut.boundaries[h.begin + t] < h.begin;
    const float end = cut.first(h.begin, t) == end_first ? static_cast<float>(exp(before - sum)) : 0.0f;
    const float start = continues ? static_cast<float>(exp(sum)) : 0.0f;
    store(t, start, end);
  }
}

// Gradients [heads] of up to three parameters; null: not wanted.
struct HeadGradients {
  float* at[3];
  int count;
};
// gradient [head] (+)= the sum over chunks of sums [chunks][count * heads].
void add_chunk_sums(const char* name, CudaStream& stream, const float* sums, std::int64_t chunks, std::int64_t heads,
                    const HeadGradients& gradients, Store store);

}  // namespace weft::cuda
