// What the kernels of the gated delta rule share. The formulas and names: weft/device/cpu/kernels/delta_rule_chunks.h and
// delta_rule_backward.cc.
#pragma once

#include "weft/device/cuda/kernels/scan.cuh"

namespace weft::cuda {

// [heads][T]
struct DeltaGates {
  double* sum;  // of g, from the chunk's first token up to and with this one
  float* beta;
  float* start;  // decay from the state before the chunk to this token
  float* end;    // decay from this token to the state after the chunk
};

template <class T>
struct DeltaArguments {
  ChunkCut cut;
  Rows<const T> q, k, v, a, b;
  Rows<T> y;
  const float *A_log, *dt_bias;
  float* states;
  DeltaGates gates;
  int heads, key_heads, per_key, dim, value_dim;  // per_key: value heads of a key head
  __device__ float* state_of(int c, int head) const {
    return states + (static_cast<std::int64_t>(c) * heads + head) * dim * value_dim;
  }
};

// ds and dbeta: [heads][T], the gradients of the running sums and of beta.
template <class T>
struct DeltaGradients {
  Rows<const T> dy;
  Rows<T> dq, dk, dv, da, db;
  float *sums, *dbeta;
  double* ds;
};

std::int64_t plain_delta_room(const ChunkCut& cut, const DeltaRule& op, bool backward);  // floats
template <class T>
void plain_delta(const char* name, CudaStream& stream, const DeltaArguments<T>& x, float* room);
template <class T>
void plain_delta_backward(const char* name, CudaStream& stream, const DeltaArguments<T>& x, const DeltaGradients<T>& g,
                          float* room);

}  // namespace weft::cuda
