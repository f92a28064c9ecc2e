// Biases of rows that carry a weight: grouped_bias and its two gradients.
#include <array>

#include "weft/device/argument_checks.h"
#include "weft/device/cpu/kernels/column_sums.h"
#include "weft/device/cpu/kernels/dispatch.h"
#include "weft/device/cpu/kernels/lane_sum.h"
#include "weft/device/operations/matmul.h"

namespace weft::WEFT_ISA {

namespace {

struct GroupRows {
  const std::int32_t *counts, *offsets;
  std::int64_t groups, rows = 0;  // rows: of all groups

  GroupRows(const char* name, const Groups& given, const Tensor& bias, const Tensor& matrix)
      : counts(given.counts.as<std::int32_t>()), offsets(given.offsets.as<std::int32_t>()), groups(bias.rows()) {
    for (std::int64_t g = 0; g < groups; ++g) {
      require(counts[g] >= 0 && offsets[g] >= 0 && offsets[g] + counts[g] <= matrix.rows(), name,
              "a group outside of the rows");
      rows += counts[g];
    }
  }

  // visit(group, row) for the rows [begin, end) of all groups one after another.
  template <class Visit>
  void each_row(std::int64_t begin, std::int64_t end, const Visit& visit) const {
    std::int64_t base = 0;
    for (std::int64_t g = 0; g < groups; base += counts[g++])
      for (std::int64_t i = std::max(begin - base, std::int64_t{0}); i < std::min<std::int64_t>(end - base, counts[g]);
           ++i)
        visit(g, offsets[g] + i);
  }
};

// sums[0 .. c1 - c0) += scale[r] * row r for rows [r0, r1).
template <class Acc, class T>
void add_scaled_rows(const Tensor& x, const Acc* scale, Acc* sums, std::int64_t r0, std::int64_t r1, std::int64_t c0,
                     std::int64_t c1) {
  for (std::int64_t r = r0; r < r1; ++r) {
    const T* a = row<T>(x, r) + c0;
    const Acc factor = scale[r];
#pragma omp simd
    for (std::int64_t j = 0; j < c1 - c0; ++j) sums[j] += factor * widen(a[j]);
  }
}

}  // namespace

void grouped_bias(Stream& stream, const GroupedBias& op) {
  constexpr const char* name = "grouped_bias";
  check_arguments(name, op);
  const GroupRows rows(name, op.groups, op.bias, op.y);
  const std::int64_t columns = columns_of(op.bias);
  with_storage_and(name, op.y.dtype, op.bias.dtype, [&](auto t, auto u) {
    using T = typename decltype(t)::type;
    using B = typename decltype(u)::type;
    using Acc = Accumulator<T>;
    split_rows(stream, rows.rows, columns, [&](std::int64_t begin, std::int64_t end) {
      rows.each_row(begin, end, [&](std::int64_t g, std::int64_t r) {
        T* __restrict y = row<T>(op.y, r);
        const B* __restrict bias = row<B>(op.bias, g);
        const Acc scale = op.scale.as<Acc>()[r];
#pragma omp simd
        for (std::int64_t j = 0; j < columns; ++j) y[j] = narrow<T>(widen(y[j]) + scale * widen_to<Acc>(bias[j]));
      });
    });
  });
}

// Every thread takes some columns of all groups, as grouped_column_sum does.
void grouped_bias_gradient(Stream& stream, const GroupedBiasGradient& op) {
  constexpr const char* name = "grouped_bias_gradient";
  check_arguments(name, op);
  const GroupRows rows(name, op.groups, op.dbias, op.dy);
  const std::int64_t columns = columns_of(op.dbias);
  constexpr std::int64_t unit = 64;
  with_storage_and(name, op.dy.dtype, op.dbias.dtype, [&](auto t, auto u) {
    using T = typename decltype(t)::type;
    using B = typename decltype(u)::type;
    using Acc = Accumulator<T>;
    split_rows(stream, (columns + unit - 1) / unit, (rows.rows + rows.groups) * unit,
               [&](std::int64_t begin, std::int64_t end) {
                 std::array<Acc, unit> total, chunk;
                 for (std::int64_t g = 0; g < rows.groups; ++g)
                   for (std::int64_t c0 = begin * unit; c0 < std::min(end * unit, columns); c0 += unit) {
                     const std::int64_t c1 = std::min(c0 + unit, columns), first = rows.offsets[g];
                     total.fill(Acc{0});
                     for (std::int64_t r = 0; r < rows.counts[g]; r += rows_per_chunk) {
                       chunk.fill(Acc{0});
                       add_scaled_rows<Acc, T>(op.dy, op.scale.as<Acc>(), chunk.data(), first + r,
                                               first + std::min<std::int64_t>(r + rows_per_chunk, rows.counts[g]), c0,
                                               c1);
                       for (std::size_t j = 0; j < unit; ++j) total[j] += chunk[j];
                     }
                     B* out = row<B>(op.dbias, g);
                     for (std::int64_t j = c0; j < c1; ++j) {
                       const Acc sum = total[static_cast<std::size_t>(j - c0)];
                       out[j] = narrow<B>(op.store == Store::add ? widen_to<Acc>(out[j]) + sum : sum);
                     }
                   }
               });
  });
}

void grouped_bias_scale_gradient(Stream& stream, const GroupedBiasScaleGradient& op) {
  constexpr const char* name = "grouped_bias_scale_gradient";
  check_arguments(name, op);
  const GroupRows rows(name, op.groups, op.bias, op.dy);
  const std::int64_t columns = columns_of(op.bias);
  with_storage_and(name, op.dy.dtype, op.bias.dtype, [&](auto t, auto u) {
    using T = typename decltype(t)::type;
    using B = typename decltype(u)::type;
    using Acc = Accumulator<T>;
    split_rows(stream, rows.rows, columns, [&](std::int64_t begin, std::int64_t end) {
      rows.each_row(begin, end, [&](std::int64_t g, std::int64_t r) {
        const T* dy = row<T>(op.dy, r);
        const B* bias = row<B>(op.bias, g);
        op.dscale.as<Acc>()[r] += lane_sum<Acc>(
            columns, [=](std::int64_t j)
                         __attribute__((always_inline)) { return widen(dy[j]) * widen_to<Acc>(bias[j]); });
      });
    });
  });
}

}  // namespace weft::WEFT_ISA
