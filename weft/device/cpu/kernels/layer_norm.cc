// layer_norm, its input gradient and the gradients of weight and bias.
#include <cmath>

#include "weft/device/argument_checks.h"
#include "weft/device/cpu/kernels/column_sums.h"
#include "weft/device/cpu/kernels/dispatch.h"
#include "weft/device/cpu/kernels/lane_sum.h"
#include "weft/device/operations/norms.h"

namespace weft::WEFT_ISA {

namespace {

template <class T, class W>
void forward(Stream& stream, const LayerNorm& op) {
  using Acc = Accumulator<T>;
  const std::int64_t columns = columns_of(op.x);
  const W *weight = op.weight.as<W>(), *bias = op.bias.as<W>();
  Acc *means = optional<Acc>(op.mean), *inverses = optional<Acc>(op.inverse);
  const auto width = static_cast<Acc>(columns);
  split_rows(stream, op.x.rows(), columns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const T* x = row<T>(op.x, r);
      T* y = row<T>(op.y, r);
      const Acc mean = lane_sum<Acc>(
                           columns, [x](std::int64_t j) __attribute__((always_inline)) { return widen(x[j]); }) /
                       width;
      const Acc square = lane_sum<Acc>(
          columns, [ x, mean ](std::int64_t j) __attribute__((always_inline)) {
            const Acc centred = widen(x[j]) - mean;
            return centred * centred;
          });
      const Acc inverse = Acc{1} / std::sqrt(square / width + static_cast<Acc>(op.eps));
      if (means != nullptr) means[r] = mean, inverses[r] = inverse;
#pragma omp simd
      for (std::int64_t j = 0; j < columns; ++j)
        y[j] = narrow<T>((widen(x[j]) - mean) * inverse * widen_to<Acc>(weight[j]) + widen_to<Acc>(bias[j]));
    }
  });
}

// With u = dy weight and n = (x - mean) inverse:  dx = inverse (u - mean(u) - n mean(u n)).
template <class T, class W>
void backward(Stream& stream, const LayerNormBackward& op) {
  using Acc = Accumulator<T>;
  const std::int64_t columns = columns_of(op.x);
  const W* weight = op.weight.as<W>();
  const auto width = static_cast<Acc>(columns);
  split_rows(stream, op.x.rows(), columns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const T *x = row<T>(op.x, r), *dy = row<T>(op.dy, r);
      T* dx = row<T>(op.dx, r);
      const Acc mean = op.mean.as<Acc>()[r], inverse = op.inverse.as<Acc>()[r];
      const Acc level = lane_sum<Acc>(
                            columns, [=
      ](std::int64_t j) __attribute__((always_inline)) { return widen(dy[j]) * widen_to<Acc>(weight[j]); }) /
                        width;
      const Acc along = lane_sum<Acc>(
                            columns,
                            [=](std::int64_t j) __attribute__((always_inline)) {
                              return widen(dy[j]) * widen_to<Acc>(weight[j]) * ((widen(x[j]) - mean) * inverse);
                            }) /
                        width;
#pragma omp simd
      for (std::int64_t j = 0; j < columns; ++j)
        dx[j] = narrow<T>(inverse *
                          (widen(dy[j]) * widen_to<Acc>(weight[j]) - level - (widen(x[j]) - mean) * inverse * along));
    }
  });
}

template <class T, class G>
void weight_gradient(Stream& stream, const LayerNormWeightGradient& op) {
  using Acc = Accumulator<T>;
  const std::int64_t rows = op.x.rows(), columns = op.dweight.shape.elements();
  const Acc *means = op.mean.as<Acc>(), *inverses = op.inverse.as<Acc>();
  column_sums<Acc>(stream, rows, columns, op.dweight.as<G>(), op.weight_store,
                   [&](Acc* sums, std::int64_t r0, std::int64_t r1, std::int64_t c0, std::int64_t c1) {
                     for (std::int64_t r = r0; r < r1; ++r) {
                       const T *x = row<T>(op.x, r), *dy = row<T>(op.dy, r);
                       const Acc mean = means[r], inverse = inverses[r];
#pragma omp simd
                       for (std::int64_t c = c0; c < c1; ++c)
                         sums[c - c0] += widen(dy[c]) * ((widen(x[c]) - mean) * inverse);
                     }
                   });
  column_sums<Acc>(stream, rows, columns, op.dbias.as<G>(), op.bias_store,
                   [&](Acc* sums, std::int64_t r0, std::int64_t r1, std::int64_t c0, std::int64_t c1) {
                     for (std::int64_t r = r0; r < r1; ++r) {
                       const T* dy = row<T>(op.dy, r);
#pragma omp simd
                       for (std::int64_t c = c0; c < c1; ++c) sums[c - c0] += widen(dy[c]);
                     }
                   });
}

}  // namespace

void layer_norm(Stream& stream, const LayerNorm& op) {
  constexpr const char* name = "layer_norm";
  check_arguments(name, op);
  with_storage_and(name, op.x.dtype, op.weight.dtype, [&](auto t, auto w) {
    forward<typename decltype(t)::type, typename decltype(w)::type>(stream, op);
  });
}

void layer_norm_backward(Stream& stream, const LayerNormBackward& op) {
  constexpr const char* name = "layer_norm_backward";
  check_arguments(name, op);
  with_storage_and(name, op.x.dtype, op.weight.dtype, [&](auto t, auto w) {
    backward<typename decltype(t)::type, typename decltype(w)::type>(stream, op);
  });
}

void layer_norm_weight_gradient(Stream& stream, const LayerNormWeightGradient& op) {
  constexpr const char* name = "layer_norm_weight_gradient";
  check_arguments(name, op);
  with_storage_and(name, op.x.dtype, op.dweight.dtype, [&](auto t, auto g) {
    weight_gradient<typename decltype(t)::type, typename decltype(g)::type>(stream, op);
  });
}

}  // namespace weft::WEFT_ISA
