// What attention's kernels share: their arguments, and which keys a query sees.
#pragma once

#include "weft/device/cuda/kernels/values.cuh"
#include "weft/device/cuda/stream.h"
#include "weft/device/operations/attention.h"

namespace weft::cuda {

// Query t sees keys [lower(t), t]. lower never falls.
struct Limits {
  const std::int32_t* boundaries;  // null: sequences of `length`
  int length, window;
  __device__ int lower(int t) const {
    const int begin = boundaries != nullptr ? boundaries[t] : t - t % length;
    return window > 0 && t - window + 1 > begin ? t - window + 1 : begin;
  }
};

template <class T>
struct AttentionArguments {
  Rows<const T> q, k, v;
  Rows<T> out;
  Rows<float> lse;    // [heads][T]
  const void* sinks;  // null: none
  bool single_sinks;
  Limits limits;
  int tokens, heads, group, dim, value_dim;  // group: heads that share a kv head
  float scale;
  __device__ float sink(int head) const {
    return single_sinks ? static_cast<const float*>(sinks)[head] : widen(static_cast<const bf16*>(sinks)[head]);
  }
};

template <class T>
struct AttentionGradients {
  Rows<const T> dout;
  Rows<T> dq, dk, dv;
  Rows<float> delta;  // [heads][T]: dout . out
};

constexpr float lowest = -1e30f;  // finite: no infinity minus infinity

// bf16 on tensor cores, for head dims of 64 and 128. False: the shape or the alignment does not allow it.
bool tensor_attention(CudaStream& stream, const Attention& op, const AttentionArguments<bf16>& arguments);
bool tensor_attention_backward(CudaStream& stream, const AttentionBackward& op,
                               const AttentionArguments<bf16>& arguments, const AttentionGradients<bf16>& gradients);

}  // namespace weft::cuda
