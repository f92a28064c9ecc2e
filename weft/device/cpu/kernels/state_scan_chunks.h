// What the state-space scan's forward and backward share. n tokens in a chunk, P dim, N state.
//
// The state before every chunk is carried along the sequence first (a task per sequence and block of heads); then all
// chunks are independent, and heads of one group share the products of B and C (a task per chunk and group).
#pragma once

#include "weft/device/argument_checks.h"
#include "weft/device/cpu/kernels/chunks.h"
#include "weft/device/operations/recurrent.h"

namespace weft::WEFT_ISA {

struct ScanShape {
  const StateScan& x;
  Chunks chunks;
  std::int64_t per_group;  // heads of a group
  std::int64_t block;      // heads of a group handled at once: side by side they are one matrix
  std::int64_t P, N;

  explicit ScanShape(const StateScan& op)
      : x(op),
        chunks(op.x.rows(), op.length, op.chunk, op.boundaries),
        per_group(op.heads / op.groups),
        block(std::clamp<std::int64_t>(512 / op.dim, 1, per_group)),
        P(op.dim),
        N(op.state) {}

  template <class T>
  T* state(const Tensor& states, std::int64_t c, std::int64_t head) const {
    return static_cast<T*>(states.data) + (c * x.heads + head) * P * N;
  }
};

// Step sizes of one head in one chunk.
template <class T>
struct Steps {
  T* dt;
  double* slope;  // of dt by its raw value
  double rate;    // a
  Decay<T> decay;

  void carve(Carver& carver, std::int64_t chunk) {
    dt = carver.take<T>(chunk);
    slope = carver.take<double>(chunk);
    decay.carve(carver, chunk);
  }
  template <class S>
  void set(const ScanShape& shape, std::int64_t head, std::int64_t begin, std::int64_t size) {
    const StateScan& x = shape.x;
    const double bias = static_cast<double>(static_cast<const T*>(x.dt_bias.data)[head]);
    rate = -std::exp(static_cast<double>(static_cast<const T*>(x.A_log.data)[head]));
    for (std::int64_t t = 0; t < size; ++t) {
      const double raw = widen_to<double>(row<S>(x.dt, begin + t)[head]) + bias, step = softplus(raw);
      slope[t] = step < x.dt_least || step > x.dt_most ? 0 : sigmoid(raw);
      const double clamped = std::min(std::max(step, x.dt_least), x.dt_most);
      dt[t] = static_cast<T>(clamped);
      decay.sums[t] = clamped * rate;
    }
    decay.set(shape.chunks, begin, size);
  }
};

// Forward: states[c + 1] = carry states[c] + sum over tokens of to_end dt x (outer) B;  the first of a sequence is 0.
// Backward, from the last chunk to the first: states[c - 1] = carry states[c] + sum of from_start x (outer) B, the last
// is 0; there x is dy, B is C, and states[c] the gradient of the state after chunk c.
template <class T, class S>
void carry_states(Stream& stream, const ScanShape& shape, const Tensor& x, const Tensor& B, const Tensor& states,
                  bool backward) {
  const std::int64_t P = shape.P, N = shape.N, per = shape.chunks.per_sequence(), chunk = shape.chunks.chunk;
  const std::int64_t blocks = (shape.per_group + shape.block - 1) / shape.block;
  for_each_task(stream, shape.chunks.sequences() * shape.x.groups * blocks, [&](std::int64_t task) {
    const std::int64_t sequence = task / (shape.x.groups * blocks), group = task / blocks % shape.x.groups;
    const std::int64_t head = group * shape.per_group + task % blocks * shape.block;
    const std::int64_t heads = std::min(shape.block, (group + 1) * shape.per_group - head), width = heads * P;
    Steps<T> steps;
    T* scaled = nullptr;
    const auto carve = [&](Carver carver) {
      steps.carve(carver, chunk);
      scaled = carver.take<T>(chunk * width);
      return carver.used();
    };
    carve(Carver(thread_scratch(ScratchUse::other, carve(Carver(nullptr)))));
    for (std::int64_t i = 0; i < per; ++i) {
      const std::int64_t c = sequence * per + (backward ? per - 1 - i : i), next = backward ? c - 1 : c + 1;
      const T* H = shape.state<T>(states, c, head);
      if (i == 0) clear(shape.state<T>(states, c, head), width * N);
      if (i + 1 == per) break;
      const std::int64_t begin = shape.chunks.begin(c), size = shape.chunks.size(c);
      T* to = shape.state<T>(states, next, head);
      for (std::int64_t h = 0; h < heads; ++h) {
        steps.template set<S>(shape, head + h, begin, size);
        for (std::int64_t t = 0; t < size; ++t) {
          const T factor = backward ? steps.decay.from_start[t] : steps.decay.to_end[t] * steps.dt[t];
          const S* from = row<S>(x, begin + t) + (head + h) * P;
          T* at = scaled + t * width + h * P;
#pragma omp simd
          for (std::int64_t p = 0; p < P; ++p) at[p] = factor * widen_to<T>(from[p]);
        }
        const T carry = steps.decay.carry;
#pragma omp simd
        for (std::int64_t j = h * P * N; j < (h + 1) * P * N; ++j) to[j] = carry * H[j];
      }
      product<T>(width, N, size, turned(static_cast<const T*>(scaled), width),
                 Matrix<S>{row<S>(B, begin) + group * N, B.stride}, to, N, Add::yes);
    }
  });
}

}  // namespace weft::WEFT_ISA
