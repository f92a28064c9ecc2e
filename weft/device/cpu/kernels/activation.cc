// activation and its backward, row by row: y = act(x) * scale.
#include "weft/device/operations/activation.h"

#include "weft/device/argument_checks.h"
#include "weft/device/cpu/kernels/activation_kinds.h"
#include "weft/device/cpu/kernels/dispatch.h"
#include "weft/device/cpu/kernels/lane_sum.h"
#include "weft/device/plain_activation.h"

namespace weft::WEFT_ISA {

namespace {

template <class Kind, class T, class Acc>
void gated_row(const Kind& kind, const T* x, T* y, Acc scale, std::int64_t width) {
  const T *g = x, *u = x + width;
#pragma omp simd
  for (std::int64_t j = 0; j < width; ++j) y[j] = narrow<T>(kind.value(widen(g[j]), widen(u[j])) * scale);
}

template <class Kind, class T, class Acc>
void plain_row(const T* x, T* y, Acc scale, std::int64_t width) {
#pragma omp simd
  for (std::int64_t j = 0; j < width; ++j) y[j] = narrow<T>(Kind::value(widen(x[j])) * scale);
}

// The backward rows return the sum of dy * act(x), the gradient of the scale.
template <class Kind, class T, class Acc>
Acc gated_gradient_row(const Kind& kind, const T* x, const T* dy, T* dx, Acc scale, std::int64_t width) {
  const T *g = x, *u = x + width;
  T *dg = dx, *du = dx + width;
  return lane_sum<Acc>(
      width, [&](std::int64_t j) __attribute__((always_inline)) {
        const Acc d = widen(dy[j]);
        Acc value, gate, linear;
        kind.gradient(widen(g[j]), widen(u[j]), d * scale, value, gate, linear);
        dg[j] = narrow<T>(gate);
        du[j] = narrow<T>(linear);
        return d * value;
      });
}

template <class Kind, class T, class Acc>
Acc plain_gradient_row(const T* x, const T* dy, T* dx, Acc scale, std::int64_t width) {
  return lane_sum<Acc>(
      width, [&](std::int64_t j) __attribute__((always_inline)) {
        const Acc d = widen(dy[j]);
        Acc value, slope;
        Kind::gradient(widen(x[j]), value, slope);
        dx[j] = narrow<T>(d * scale * slope);
        return d * value;
      });
}

}  // namespace

void activation(Stream& stream, const Activation& op) {
  check_arguments("activation", op);
  const std::int64_t rows = used_rows("activation", op.rows_in_use, op.x.rows()), width = columns_of(op.y);
  with_storage("activation", op.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using Acc = Accumulator<T>;
    const Acc* scales = optional<Acc>(op.scale);
    const auto run = [&](const auto& one_row) {
      split_rows(stream, rows, width * 2, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r)
          one_row(row<T>(op.x, r), row<T>(op.y, r), scales != nullptr ? scales[r] : Acc{1});
      });
    };
    if (op.spec.gated()) {
      with_gated_kind<Acc>(op.spec, [&](const auto& kind) {
        run([&](const T* x, T* y, Acc scale) { gated_row(kind, x, y, scale, width); });
      });
    } else {
      with_plain_activation<SquaredRelu, GeluTanh, GeluErf>(op.spec.kind, [&](auto kind) {
        run([&](const T* x, T* y, Acc scale) { plain_row<decltype(kind)>(x, y, scale, width); });
      });
    }
  });
}

void activation_backward(Stream& stream, const ActivationBackward& op) {
  constexpr const char* name = "activation_backward";
  check_arguments(name, op);
  const std::int64_t rows = used_rows(name, op.rows_in_use, op.x.rows()), width = columns_of(op.dy);
  with_storage(name, op.x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using Acc = Accumulator<T>;
    const Acc* scales = optional<Acc>(op.scale);
    Acc* dscales = optional<Acc>(op.dscale);
    const auto run = [&](const auto& one_row) {
      split_rows(stream, rows, width * 2, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) {
          const Acc sum =
              one_row(row<T>(op.x, r), row<T>(op.dy, r), row<T>(op.dx, r), scales != nullptr ? scales[r] : Acc{1});
          if (dscales != nullptr) dscales[r] = sum;
        }
      });
    };
    if (op.spec.gated()) {
      with_gated_kind<Acc>(op.spec, [&](const auto& kind) {
        run([&](const T* x, const T* dy, T* dx, Acc scale) {
          return gated_gradient_row(kind, x, dy, dx, scale, width);
        });
      });
    } else {
      with_plain_activation<SquaredRelu, GeluTanh, GeluErf>(op.spec.kind, [&](auto kind) {
        run([&](const T* x, const T* dy, T* dx, Acc scale) {
          return plain_gradient_row<decltype(kind)>(x, dy, dx, scale, width);
        });
      });
    }
  });
}

}  // namespace weft::WEFT_ISA
