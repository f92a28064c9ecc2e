// y = x sigmoid(gate), one gate for each part of a row.
#include "weft/device/argument_checks.h"
#include "weft/device/cpu/kernels/activation_kinds.h"
#include "weft/device/cpu/kernels/dispatch.h"
#include "weft/device/cpu/kernels/lane_sum.h"
#include "weft/device/operations/activation.h"

namespace weft::WEFT_ISA {

void sigmoid_gate(Stream& stream, const SigmoidGate& op) {
  constexpr const char* name = "sigmoid_gate";
  check_arguments(name, op);
  const std::int64_t width = gated_width(op.x, op.gate), parts = columns_of(op.gate);
  with_storage(name, op.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    split_rows(stream, op.x.rows(), 2 * columns_of(op.x), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const T *x = row<T>(op.x, r), *gate = row<T>(op.gate, r);
        T* y = row<T>(op.y, r);
        if (width == 1) {
#pragma omp simd
          for (std::int64_t j = 0; j < parts; ++j) y[j] = narrow<T>(widen(x[j]) * gate_of(widen(gate[j])));
          continue;
        }
        for (std::int64_t part = 0; part < parts; ++part) {
          const auto factor = gate_of(widen(gate[part]));
#pragma omp simd
          for (std::int64_t j = part * width; j < (part + 1) * width; ++j) y[j] = narrow<T>(widen(x[j]) * factor);
        }
      }
    });
  });
}

void sigmoid_gate_backward(Stream& stream, const SigmoidGateBackward& op) {
  constexpr const char* name = "sigmoid_gate_backward";
  check_arguments(name, op);
  const std::int64_t width = gated_width(op.x, op.gate), parts = columns_of(op.gate);
  with_storage(name, op.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using Acc = Accumulator<T>;
    split_rows(stream, op.x.rows(), 3 * columns_of(op.x), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const T *x = row<T>(op.x, r), *gate = row<T>(op.gate, r), *dy = row<T>(op.dy, r);
        T *dx = row<T>(op.dx, r), *dgate = row<T>(op.dgate, r);
        if (width == 1) {
#pragma omp simd
          for (std::int64_t j = 0; j < parts; ++j) {
            const Acc s = gate_of(widen(gate[j])), d = widen(dy[j]);
            dgate[j] = narrow<T>(d * widen(x[j]) * s * (Acc{1} - s));
            dx[j] = narrow<T>(d * s);
          }
          continue;
        }
        for (std::int64_t part = 0; part < parts; ++part) {
          const T *from = x + part * width, *d = dy + part * width;
          T* to = dx + part * width;
          const Acc s = gate_of(widen(gate[part]));
          const Acc dot = lane_sum<Acc>(
              width, [=](std::int64_t j) __attribute__((always_inline)) { return widen(d[j]) * widen(from[j]); });
          dgate[part] = narrow<T>(dot * s * (Acc{1} - s));
#pragma omp simd
          for (std::int64_t j = 0; j < width; ++j) to[j] = narrow<T>(widen(d[j]) * s);
        }
      }
    });
  });
}

}  // namespace weft::WEFT_ISA
