// rms_norm and its gradients.
#include <cmath>

#include "weft/device/argument_checks.h"
#include "weft/device/cpu/kernels/column_sums.h"
#include "weft/device/cpu/kernels/dispatch.h"
#include "weft/device/cpu/kernels/lane_sum.h"
#include "weft/device/operations/norms.h"

namespace weft::WEFT_ISA {

namespace {

// How a row is cut into parts, and where a part's weights are.
struct Parts {
  std::int64_t count, width, weight_step;  // weight_step: 0 where the parts share their weights
};
Parts parts_of(const Tensor& x, const Tensor& weight, std::int64_t groups) {
  const std::int64_t columns = columns_of(x);
  const std::int64_t width = columns / groups, weights = weight.shape.elements();
  if (x.rows() == 0) return {groups, width, 0};
  return {groups, width, weights == width ? 0 : width};
}

template <class T, class W>
void forward(Stream& stream, const RmsNorm& op) {
  using Acc = Accumulator<T>;
  const Parts parts = parts_of(op.x, op.weight, op.groups);
  const W* weights = op.weight.as<W>();
  Acc* inverses = optional<Acc>(op.inverse);
  const Acc shift = op.zero_centred ? 1 : 0;
  const std::int64_t width = parts.width;
  split_rows(stream, op.x.rows(), columns_of(op.x), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t part = 0; part < parts.count; ++part) {
        const T* x = row<T>(op.x, r) + part * width;
        const W* weight = weights + part * parts.weight_step;
        T* y = row<T>(op.y, r) + part * width;
        const Acc sum = lane_sum<Acc>(
            width, [x](std::int64_t j) __attribute__((always_inline)) { return widen(x[j]) * widen(x[j]); });
        const Acc inverse = Acc{1} / std::sqrt(sum / static_cast<Acc>(width) + static_cast<Acc>(op.eps));
        if (inverses != nullptr) inverses[r * parts.count + part] = inverse;
#pragma omp simd
        for (std::int64_t j = 0; j < width; ++j)
          y[j] = narrow<T>(widen(x[j]) * inverse * (widen_to<Acc>(weight[j]) + shift));
      }
  });
}

// With u = dy * weight:  dx = inverse * u - x * inverse^3 * mean(u * x).
template <class T, class W>
void input_gradient(Stream& stream, const RmsNormBackward& op) {
  using Acc = Accumulator<T>;
  const Parts parts = parts_of(op.x, op.weight, op.groups);
  const W* weights = op.weight.as<W>();
  const Acc* inverses = op.inverse.as<Acc>();
  const Acc shift = op.zero_centred ? 1 : 0;
  const std::int64_t width = parts.width;
  split_rows(stream, op.x.rows(), columns_of(op.x), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t part = 0; part < parts.count; ++part) {
        const T* x = row<T>(op.x, r) + part * width;
        const T* dy = row<T>(op.dy, r) + part * width;
        const W* weight = weights + part * parts.weight_step;
        T* dx = row<T>(op.dx, r) + part * width;
        const Acc inverse = inverses[r * parts.count + part];
        const Acc dot = lane_sum<Acc>(
            width, [=](std::int64_t j) __attribute__((always_inline)) {
              return widen(dy[j]) * (widen_to<Acc>(weight[j]) + shift) * widen(x[j]);
            });
        const Acc along = inverse * inverse * inverse * dot / static_cast<Acc>(width);
        if (op.residual.given()) {
          const T* residual = row<T>(op.residual, r) + part * width;
#pragma omp simd
          for (std::int64_t j = 0; j < width; ++j)
            dx[j] = narrow<T>(widen(residual[j]) +
                              (widen(dy[j]) * (widen_to<Acc>(weight[j]) + shift) * inverse - widen(x[j]) * along));
        } else {
#pragma omp simd
          for (std::int64_t j = 0; j < width; ++j)
            dx[j] = narrow<T>(widen(dy[j]) * (widen_to<Acc>(weight[j]) + shift) * inverse - widen(x[j]) * along);
        }
      }
  });
}

// Where the parts share their weights, a part is a row of the sum.
template <class T, class G>
void weight_gradient(Stream& stream, const RmsNormBackward& op) {
  using Acc = Accumulator<T>;
  const Parts parts = parts_of(op.x, op.dweight, op.groups);
  const Acc* inverses = op.inverse.as<Acc>();
  const bool shared = parts.weight_step == 0;
  const std::int64_t width = parts.width;
  const std::int64_t rows = op.x.rows() * (shared ? parts.count : 1);
  const auto add_rows = [&](Acc* sums, std::int64_t first, std::int64_t last, std::int64_t c0, std::int64_t c1) {
    for (std::int64_t r = first; r < last; ++r) {
      const std::int64_t token = shared ? r / parts.count : r, offset = shared ? r % parts.count * width : 0;
      const T* x = row<T>(op.x, token) + offset;
      const T* dy = row<T>(op.dy, token) + offset;
      if (shared) {
        const Acc inverse = inverses[r];
#pragma omp simd
        for (std::int64_t c = c0; c < c1; ++c) sums[c - c0] += widen(dy[c]) * widen(x[c]) * inverse;
      } else {
        for (std::int64_t part = c0 / width; part * width < c1; ++part) {
          const Acc inverse = inverses[r * parts.count + part];
          const std::int64_t from = std::max(c0, part * width), to = std::min(c1, (part + 1) * width);
#pragma omp simd
          for (std::int64_t c = from; c < to; ++c) sums[c - c0] += widen(dy[c]) * widen(x[c]) * inverse;
        }
      }
    }
  };
  column_sums<Acc>(stream, rows, op.dweight.shape.elements(), op.dweight.as<G>(), op.store, add_rows);
}

}  // namespace

void rms_norm(Stream& stream, const RmsNorm& op) {
  check_arguments("rms_norm", op);
  with_storage_and("rms_norm", op.x.dtype, op.weight.dtype, [&](auto t, auto w) {
    forward<typename decltype(t)::type, typename decltype(w)::type>(stream, op);
  });
}

void rms_norm_backward(Stream& stream, const RmsNormBackward& op) {
  check_arguments("rms_norm_backward", op);
  // First: dx may take dy's place.
  with_storage_and("rms_norm_backward", op.x.dtype, op.dweight.dtype, [&](auto t, auto g) {
    weight_gradient<typename decltype(t)::type, typename decltype(g)::type>(stream, op);
  });
  with_storage_and("rms_norm_backward", op.x.dtype, op.weight.dtype, [&](auto t, auto w) {
    input_gradient<typename decltype(t)::type, typename decltype(w)::type>(stream, op);
  });
}

}  // namespace weft::WEFT_ISA
