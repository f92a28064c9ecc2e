// What attention's kernels share: their arguments, and which keys a query sees.
#pragma once

#include "weft/device/cuda/kernels/values.cuh"
#include "weft/device/cuda/stream.h"
#include "weft/device/operations/attention.h"
#include "weft/device/operations/attention_block.h"

namespace weft::cuda {

// Query t sees keys [lower(t), upper(t)]. Neither ever falls.
struct Limits {
  const std::int32_t* boundaries;  // null: sequences of `length`
  int length, window;
  const std::int32_t *firsts = nullptr, *ends = nullptr;  // given: keys have numbers of their own
  __device__ int upper(int t) const { return ends != nullptr ? ends[t] - 1 : t; }
  __device__ int lower(int t) const {
    if (firsts != nullptr) return firsts[t];
    const int begin = boundaries != nullptr ? boundaries[t] : t - t % length;
    return window > 0 && t - window + 1 > begin ? t - window + 1 : begin;
  }
};

// T: of queries, keys and values. O: of results.
template <class T, class O = T>
struct AttentionArguments {
  Rows<const T> q, k, v;
  Rows<O> out;
  Rows<float> lse;    // [heads][T]
  const void* sinks;  // null: none
  bool single_sinks;
  Limits limits;
  int tokens, heads, group, dim, value_dim;  // group: heads that share a kv head
  float scale;
  int keys;           // as many as tokens, but for a block of keys
  bool more = false;  // out and lse hold results over other keys
  __device__ float sink(int head) const {
    return single_sinks ? static_cast<const float*>(sinks)[head] : widen(static_cast<const bf16*>(sinks)[head]);
  }
};

template <class T, class O = T>
struct AttentionGradients {
  Rows<const T> dout;
  Rows<O> dq, dk, dv;
  Rows<float> delta;  // [heads][T]: dout . out
  bool add_queries = false, add_keys = false;
};

constexpr float lowest = -1e30f;  // finite: no infinity minus infinity

// bf16 on tensor cores, for head dims of 64 and 128. False: the shape or the alignment does not allow it.
bool tensor_attention(CudaStream& stream, const Attention& op, const AttentionArguments<bf16>& arguments);
bool tensor_attention_backward(CudaStream& stream, const AttentionBackward& op,
                               const AttentionArguments<bf16>& arguments, const AttentionGradients<bf16>& gradients);

}  // namespace weft::cuda
