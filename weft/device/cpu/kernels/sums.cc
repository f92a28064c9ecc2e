// column_sum, grouped_column_sum, sum_of_squares.
#include <array>

#include "weft/device/argument_checks.h"
#include "weft/device/cpu/kernels/column_sums.h"
#include "weft/device/cpu/kernels/dispatch.h"
#include "weft/device/cpu/kernels/lane_sum.h"
#include "weft/device/operations/matmul.h"
#include "weft/device/operations/optimizer.h"

namespace weft::WEFT_ISA {

namespace {

// sums[0 .. c1 - c0) += rows [r0, r1) of x, four at a time: a quarter of the traffic on the sums.
template <class Acc, class T>
void add_rows_of(const Tensor& x, Acc* sums, std::int64_t r0, std::int64_t r1, std::int64_t c0, std::int64_t c1) {
  const std::int64_t columns = c1 - c0;
  std::int64_t r = r0;
  for (; r + 4 <= r1; r += 4) {
    const T *a = row<T>(x, r) + c0, *b = row<T>(x, r + 1) + c0, *c = row<T>(x, r + 2) + c0, *d = row<T>(x, r + 3) + c0;
#pragma omp simd
    for (std::int64_t j = 0; j < columns; ++j) sums[j] += (widen(a[j]) + widen(b[j])) + (widen(c[j]) + widen(d[j]));
  }
  for (; r < r1; ++r) {
    const T* a = row<T>(x, r) + c0;
#pragma omp simd
    for (std::int64_t j = 0; j < columns; ++j) sums[j] += widen(a[j]);
  }
}

// One group's rows over columns [c0, c1), at most columns_per_block of them: chunks of rows, as in column_sums.
template <class Acc, class T, class Y>
void sum_group(const Tensor& x, std::int64_t first, std::int64_t count, std::int64_t c0, std::int64_t c1, Y* y,
               Store store) {
  std::array<Acc, columns_per_block> total{}, chunk;
  const std::int64_t columns = c1 - c0;
  for (std::int64_t r = 0; r < count; r += rows_per_chunk) {
    std::fill_n(chunk.data(), columns, Acc{0});
    add_rows_of<Acc, T>(x, chunk.data(), first + r, first + std::min(r + rows_per_chunk, count), c0, c1);
#pragma omp simd
    for (std::int64_t j = 0; j < columns; ++j) total[static_cast<std::size_t>(j)] += chunk[static_cast<std::size_t>(j)];
  }
  if (store == Store::add) {
#pragma omp simd
    for (std::int64_t j = 0; j < columns; ++j)
      y[c0 + j] = narrow<Y>(widen_to<Acc>(y[c0 + j]) + total[static_cast<std::size_t>(j)]);
  } else {
#pragma omp simd
    for (std::int64_t j = 0; j < columns; ++j) y[c0 + j] = narrow<Y>(total[static_cast<std::size_t>(j)]);
  }
}

template <class T>
double squares(const T* x, std::int64_t count) {
  return lane_sum<double>(
      count, [x](std::int64_t i) __attribute__((always_inline)) {
        const double wide = static_cast<double>(widen(x[i]));
        return wide * wide;
      });
}

}  // namespace

void column_sum(Stream& stream, const ColumnSum& op) {
  check_arguments("column_sum", op);
  const std::int64_t rows = used_rows("column_sum", op.rows_in_use, op.x.rows());
  const std::int64_t columns = op.y.shape.elements();
  with_storage_and("column_sum", op.x.dtype, op.y.dtype, [&](auto t, auto u) {
    using T = typename decltype(t)::type;
    using Y = typename decltype(u)::type;
    using Acc = Accumulator<T>;
    column_sums<Acc>(stream, rows, columns, op.y.as<Y>(), op.store,
                     [&](Acc* sums, std::int64_t r0, std::int64_t r1, std::int64_t c0, std::int64_t c1) {
                       add_rows_of<Acc, T>(op.x, sums, r0, r1, c0, c1);
                     });
  });
}

// Every thread takes some columns of all groups: groups differ in length, columns do not.
void grouped_column_sum(Stream& stream, const GroupedColumnSum& op) {
  constexpr const char* name = "grouped_column_sum";
  const std::int64_t groups = op.y.rows(), columns = columns_of(op.y);
  check_arguments(name, op);
  const std::int32_t* counts = op.groups.counts.as<std::int32_t>();
  const std::int32_t* offsets = op.groups.offsets.as<std::int32_t>();
  std::int64_t rows = 0;
  for (std::int64_t g = 0; g < groups; ++g) {
    require(counts[g] >= 0 && offsets[g] >= 0 && offsets[g] + counts[g] <= op.x.rows(), name, "a group outside of x");
    rows += counts[g];
  }
  constexpr std::int64_t unit = 64;
  const std::int64_t units = (columns + unit - 1) / unit;
  with_storage_and(name, op.x.dtype, op.y.dtype, [&](auto t, auto u) {
    using T = typename decltype(t)::type;
    using Y = typename decltype(u)::type;
    split_rows(stream, units, (rows + groups) * unit, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t g = 0; g < groups; ++g)
        for (std::int64_t c0 = begin * unit; c0 < std::min(end * unit, columns); c0 += columns_per_block)
          sum_group<Accumulator<T>, T, Y>(op.x, offsets[g], counts[g], c0,
                                          std::min({c0 + columns_per_block, end * unit, columns}), row<Y>(op.y, g),
                                          op.store);
    });
  });
}

// A fixed number of parts of the list of blocks, whatever the number of threads; their sums are added in order.
void sum_of_squares(Stream& stream, const SumOfSquares& op) {
  constexpr const char* name = "sum_of_squares";
  constexpr std::int64_t parts = 64, block = 8192;
  check_arguments(name, op);
  std::int64_t blocks = 0;
  for (const Tensor& x : op.x) blocks += (x.shape.elements() + block - 1) / block;
  std::array<double, parts> sums{};
  split(stream, parts, std::max<std::int64_t>(parts * 4 / std::max<std::int64_t>(blocks, 1), 1),
        [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t part = begin; part < end; ++part) {
            const std::int64_t from = blocks * part / parts, to = blocks * (part + 1) / parts;
            std::int64_t base = 0;  // the tensor's first block
            double sum = 0;
            for (const Tensor& x : op.x) {
              const std::int64_t elements = x.shape.elements(), count = (elements + block - 1) / block;
              const std::int64_t first = std::max(from - base, std::int64_t{0}), last = std::min(to - base, count);
              if (first < last)
                with_storage(name, x.dtype, [&](auto type) {
                  using T = typename decltype(type)::type;
                  for (std::int64_t b = first; b < last; ++b)
                    sum += squares(x.as<T>() + b * block, std::min(block, elements - b * block));
                });
              base += count;
            }
            sums[static_cast<std::size_t>(part)] = sum;
          }
        });
  double total = op.store == Store::add ? *op.out.as<double>() : 0;
  for (double sum : sums) total += sum;
  *op.out.as<double>() = total;
}

}  // namespace weft::WEFT_ISA
