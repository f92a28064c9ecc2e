// What the kernels of Mamba-2's scan share. The formulas: weft/device/cpu/kernels/state_scan.cc and
// state_scan_backward.cc. Tokens are cut into chunks; the state before every chunk is carried along a sequence, then all
// chunks are independent.
//
// Scratch: what a head's step sizes give for every token, once per operation ([heads][T] each), and in backward what the
// kernels leave behind for the gradient of the step sizes.
#pragma once

#include "weft/device/cuda/kernels/values.cuh"
#include "weft/device/cuda/stream.h"
#include "weft/device/operations/recurrent.h"

namespace weft::cuda {

struct ChunkCut {
  int tokens, length, chunk, per_sequence, sequences;
  const std::int32_t* boundaries;  // null: none

  __host__ __device__ int count() const { return sequences * per_sequence; }
  __device__ int begin(int c) const { return c / per_sequence * length + c % per_sequence * chunk; }
  __device__ int size(int c) const { return min(chunk, length - c % per_sequence * chunk); }
  // The first token of t's document, within the chunk that begins at `begin`.
  __device__ int first(int begin, int t) const {
    return boundaries != nullptr ? max(boundaries[begin + t] - begin, 0) : 0;
  }
};

// The cut of T tokens. Refuses what a kernel's ints and grids do not hold.
ChunkCut chunk_cut(const char* operation, std::int64_t tokens, std::int64_t length, std::int64_t chunk,
                   const Tensor& boundaries, std::int64_t heads);

// [heads][T]
struct Steps {
  double* sum;   // of d a, from the chunk's first token up to and with this one
  float* dt;     // d
  float* start;  // decay from the state before the chunk to this token
  float* end;    // decay from this token to the state after the chunk
  float* share;  // end * d
};

template <class T>
struct ScanArguments {
  ChunkCut cut;
  Rows<const T> x, B, C, dt;
  Rows<T> y;
  const float *A_log, *dt_bias, *D;  // D: may be null
  float* states;
  Steps steps;
  int heads, groups, per_group, dim, state;
  float dt_least, dt_most;
  __device__ float* state_of(float* all, int c, int head) const {
    return all + (static_cast<std::int64_t>(c) * heads + head) * dim * state;
  }
};

// Parts of the gradient of the step sizes, [heads][T]; W_tj = dM_tj decay_tj (C_t . B_j), dM_tj = dy_t . x_j.
struct StepParts {
  float* row[2];    // sum over j < t of W_tj d_j; [1]: what pairs with j >= 64 add where t >= 64
  float* column;    // sum over t > j of W_tj
  float* self;      // dM_tt (C_t . B_t)
  float* diagonal;  // dM_tt
  float* reach;     // end_j x_j . dH B_j
  float* before;    // start_t dy_t . H0 C_t
  float* dot;       // dH . H0, [chunks][heads]
};

template <class T>
struct ScanGradients {
  Rows<const T> dy;
  Rows<T> dx, dB, dC, ddt;
  float *dstates, *sums;
  StepParts parts;
  bool two_rows;  // whether row[1] is used
};

// On tensor cores: bf16, dim 64, state 64 or 128, chunks of at most 128 tokens, everything aligned to 16 bytes.
constexpr int scan_rows = 128;
bool tensor_scan_fits(const StateScan& op, const StateScanBackward* gradients);
void tensor_scan(const char* name, CudaStream& stream, const ScanArguments<bf16>& x);
void tensor_scan_backward(const char* name, CudaStream& stream, const ScanArguments<bf16>& x,
                          const ScanGradients<bf16>& g);
// The state carried along: forward (rows x, B) or backward (rows dy, C).
void tensor_carry(const char* name, CudaStream& stream, const ScanArguments<bf16>& x, const Rows<const bf16>& rows,
                  const Rows<const bf16>& columns, const float* factor, float* states, bool backward);

// Everything else. room: plain_scan_room() floats.
std::int64_t plain_scan_room(const ChunkCut& cut, std::int64_t tasks, std::int64_t state, bool backward);
template <class T>
void plain_scan(const char* name, CudaStream& stream, const ScanArguments<T>& x, float* room);
template <class T>
void plain_scan_backward(const char* name, CudaStream& stream, const ScanArguments<T>& x, const ScanGradients<T>& g,
                         float* room);

}  // namespace weft::cuda
