// layer_norm, its input gradient and the gradients of weight and bias.
#include <cmath>

#include "weft/device/cpu/kernels/column_sums.h"
#include "weft/device/cpu/kernels/dispatch.h"
#include "weft/device/cpu/kernels/lane_sum.h"
#include "weft/device/operations/norms.h"

namespace weft::WEFT_ISA {

namespace {

template <class Acc>
void check_row_values(const char* name, const Tensor& mean, const Tensor& inverse, std::int64_t rows) {
  for (const Tensor* tensor : {&mean, &inverse})
    require(tensor->dtype == dtype_of<Acc>() && tensor->shape.elements() == rows, name,
            "mean and inverse are not acc [rows]");
}

template <class T, class W>
void forward(Stream& stream, const LayerNorm& op) {
  using Acc = Accumulator<T>;
  const std::int64_t columns = columns_of(op.x);
  const W *weight = op.weight.as<W>(), *bias = op.bias.as<W>();
  Acc *means = optional<Acc>(op.mean), *inverses = optional<Acc>(op.inverse);
  if (means != nullptr) check_row_values<Acc>("layer_norm", op.mean, op.inverse, op.x.rows());
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
  check_row_values<Acc>("layer_norm_backward", op.mean, op.inverse, op.x.rows());
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
  check_row_values<Acc>("layer_norm_weight_gradient", op.mean, op.inverse, rows);
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
  require(same_size(op.x, op.y) && op.x.dtype == op.y.dtype, name, "x and y differ in shape or dtype");
  require(op.x.rows() == 0 || op.weight.shape.elements() == columns_of(op.x), name, "the weight is not [columns]");
  require(op.weight.shape.elements() == op.bias.shape.elements() && op.weight.dtype == op.bias.dtype, name,
          "weight and bias differ in shape or dtype");
  require(op.mean.given() == op.inverse.given(), name, "mean and inverse go together");
  with_storage_and(name, op.x.dtype, op.weight.dtype, [&](auto t, auto w) {
    forward<typename decltype(t)::type, typename decltype(w)::type>(stream, op);
  });
}

void layer_norm_backward(Stream& stream, const LayerNormBackward& op) {
  constexpr const char* name = "layer_norm_backward";
  require(same_size(op.x, op.dy) && same_size(op.x, op.dx) && op.x.dtype == op.dy.dtype && op.x.dtype == op.dx.dtype,
          name, "x, dy and dx differ in shape or dtype");
  require(op.x.rows() == 0 || op.weight.shape.elements() == columns_of(op.x), name, "the weight is not [columns]");
  with_storage_and(name, op.x.dtype, op.weight.dtype, [&](auto t, auto w) {
    backward<typename decltype(t)::type, typename decltype(w)::type>(stream, op);
  });
}

void layer_norm_weight_gradient(Stream& stream, const LayerNormWeightGradient& op) {
  constexpr const char* name = "layer_norm_weight_gradient";
  require(same_size(op.x, op.dy) && op.x.dtype == op.dy.dtype, name, "x and dy differ in shape or dtype");
  require(op.x.rows() == 0 || op.dweight.shape.elements() == columns_of(op.x), name, "dweight is not [columns]");
  require(op.dweight.shape.elements() == op.dbias.shape.elements() && op.dweight.dtype == op.dbias.dtype, name,
          "dweight and dbias differ in shape or dtype");
  with_storage_and(name, op.x.dtype, op.dweight.dtype, [&](auto t, auto g) {
    weight_gradient<typename decltype(t)::type, typename decltype(g)::type>(stream, op);
  });
}

}  // namespace weft::WEFT_ISA
