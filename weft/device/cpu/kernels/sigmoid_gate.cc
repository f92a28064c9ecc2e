// y = x sigmoid(gate), one gate for each part of a row.
#include "weft/device/cpu/kernels/activation_kinds.h"
#include "weft/device/cpu/kernels/dispatch.h"
#include "weft/device/cpu/kernels/lane_sum.h"
#include "weft/device/operations/activation.h"

namespace weft::WEFT_ISA {

namespace {

// The width of a part.
std::int64_t width_of(const char* operation, const Tensor& x, const Tensor& gate) {
  require(x.rows() == gate.rows() && x.dtype == gate.dtype, operation, "x and gate differ in rows or dtype");
  const std::int64_t parts = columns_of(gate);
  if (x.rows() == 0) return 1;
  require(parts >= 1 && columns_of(x) % parts == 0, operation, "a row does not divide into its parts");
  return columns_of(x) / parts;
}

}  // namespace

void sigmoid_gate(Stream& stream, const SigmoidGate& op) {
  constexpr const char* name = "sigmoid_gate";
  require(same_size(op.x, op.y) && op.x.dtype == op.y.dtype, name, "x and y differ in shape or dtype");
  const std::int64_t width = width_of(name, op.x, op.gate), parts = columns_of(op.gate);
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
  require(same_size(op.x, op.dy) && same_size(op.x, op.dx) && op.x.dtype == op.dy.dtype && op.x.dtype == op.dx.dtype,
          name, "x, dy and dx differ in shape or dtype");
  require(same_size(op.gate, op.dgate) && op.gate.dtype == op.dgate.dtype, name,
          "gate and dgate differ in shape or dtype");
  const std::int64_t width = width_of(name, op.x, op.gate), parts = columns_of(op.gate);
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
