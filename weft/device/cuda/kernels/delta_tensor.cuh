// What the tensor-core kernels of the gated delta rule share: bf16, keys and values of 128, chunks of at most 64 tokens.
// Inside a chunk, with T = (I + A)^-1 of delta_rule_chunks.h, the updates are linear in the state S0 before it:
//   U = U1 - W S0,   U1 = T beta V,   W = T beta E K
// so everything but the state itself is computed for all chunks at once.
//
// 128 threads, four warps, 16 tokens per warp. Tokens beyond the chunk's are zeros in shared memory.
#pragma once

#include "weft/device/cuda/kernels/delta.cuh"
#include "weft/device/cuda/kernels/scan_tensor.cuh"

namespace weft::cuda {

constexpr int delta_rows = 64, delta_dim = 128;
constexpr int delta_tile = delta_rows * delta_dim, delta_square = delta_dim * delta_dim;  // elements

// bf16 in scratch memory, [heads][T][128]
struct DeltaWork {
  bf16 *W, *U;
  bf16* T;       // [chunks][heads][64][64]; this and those below: backward
  bf16* dU;      // [heads][T][128]
  bf16* dstate;  // [chunks][heads][128][128], the gradients of the states after the chunks
  __device__ Rows<bf16> rows(bf16* all, int head, int tokens) const {
    return {all + static_cast<std::int64_t>(head) * tokens * delta_dim, delta_dim};
  }
};

// Running sums (of logarithms to base 2), beta and decays of a head, zeros from n on; [64] each, in shared memory.
struct HeadGates {
  float *sum, *beta, *start, *end;
  __device__ explicit HeadGates(float* at)
      : sum(at), beta(at + delta_rows), start(at + 2 * delta_rows), end(at + 3 * delta_rows) {}
  __device__ void load(const DeltaGates& g, std::int64_t at, int n) const {
    const int t = static_cast<int>(threadIdx.x);
    if (t >= delta_rows) return;
    sum[t] = t < n ? static_cast<float>(g.sum[at + t] * 1.4426950408889634) : 0.0f;
    beta[t] = t < n ? g.beta[at + t] : 0.0f;
    start[t] = t < n ? g.start[at + t] : 0.0f;
    end[t] = t < n ? g.end[at + t] : 0.0f;
  }
};
constexpr int delta_gates = 4 * delta_rows;  // floats

// The chunk's tokens, columns from `column` on, into a tile.
template <int threads = scan_threads, int chunks, class T>
__device__ inline void copy_chunk(const SharedTile<chunks>& to, const Rows<T>& from, int begin, int n, int column) {
  copy_tokens<chunks, threads>(to.data, from, begin, n, 0, delta_rows, 0, column);
}

// A state [128][128] as a tile of bf16, by `threads` threads.
template <int threads>
__device__ inline void copy_square(bf16* to, const float* from) {
  const SharedTile<16> tile{to};
#pragma unroll 4
  for (int i = 0; i < delta_dim * 16 / threads; ++i) {
    const int index = i * threads + static_cast<int>(threadIdx.x);
    float v[8];
    load<8>(from + index * 8, v);
    store<8>(tile.at(index / 16, index % 16), v);
  }
}

// The decay from token j to token t >= j; 0 where they do not see each other. lower: the first token that t sees.
__device__ inline float pair_decay(const HeadGates& g, int t, int j, int lower) {
  return j <= t && j >= lower ? exp2f(g.sum[t] - g.sum[j]) : 0.0f;
}

bool tensor_delta_fits(const DeltaRule& op, const DeltaRuleBackward* gradients);
void tensor_delta(const char* name, CudaStream& stream, const DeltaArguments<bf16>& x, const DeltaWork& work);
// W and U1 (in U) of all chunks; T too where work has it.
void solve_chunks(const char* name, CudaStream& stream, const DeltaArguments<bf16>& x, const DeltaWork& work);
void tensor_delta_backward(const char* name, CudaStream& stream, const DeltaArguments<bf16>& x,
                           const DeltaGradients<bf16>& g, const DeltaWork& work);

// From U, dU, T and the states' gradients to all that is left: dq, dk, dv, ds, dbeta.
void delta_chunk_gradients(const char* name, CudaStream& stream, const DeltaArguments<bf16>& x,
                           const DeltaGradients<bf16>& g, const DeltaWork& work);

}  // namespace weft::cuda
