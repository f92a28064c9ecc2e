// route_rows, gather_rows, sum_rows: tokens to the rows of their experts and back.
#include "weft/device/operations/rows.h"

#include <array>
#include <cstring>

#include "weft/device/argument_checks.h"
#include "weft/device/cpu/kernels/dispatch.h"

namespace weft::WEFT_ISA {

// A counting sort. Every part of the slots counts its experts; then it knows where its rows begin, and places them.
// The result does not depend on the number of parts.
void route_rows(Stream& stream, const RouteRows& op) {
  constexpr const char* name = "route_rows";
  constexpr std::int64_t slots_per_part = 8192;
  check_arguments(name, op);
  const std::int64_t slots = op.indices.shape.elements(), experts = op.counts.shape.elements();
  const std::int32_t* indices = op.indices.as<std::int32_t>();
  std::int32_t* row_of_slot = op.row_of_slot.as<std::int32_t>();
  std::int32_t* slot_of_row = op.slot_of_row.as<std::int32_t>();

  const std::int64_t parts = std::clamp<std::int64_t>(slots / slots_per_part, 1, team_of(stream).size());
  auto* next =
      static_cast<std::int32_t*>(thread_scratch(static_cast<std::size_t>(parts * experts) * sizeof(std::int32_t)));
  const auto for_each_part = [&](const auto& work) {  // work(the part's numbers by expert, first slot, end)
    split(stream, parts, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part)
        work(next + part * experts, slots * part / parts, slots * (part + 1) / parts);
    });
  };
  for_each_part([&](std::int32_t* count, std::int64_t first, std::int64_t last) {
    for (std::int64_t e = 0; e < experts; ++e) count[e] = 0;
    for (std::int64_t slot = first; slot < last; ++slot) {
      require(indices[slot] < experts, name, "an index beyond the experts");
      if (indices[slot] >= 0) ++count[indices[slot]];
    }
  });

  // Counts become the rows at which the parts begin.
  std::int64_t row_count = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    op.offsets.as<std::int32_t>()[e] = static_cast<std::int32_t>(row_count);
    std::int64_t at = row_count;
    for (std::int64_t part = 0; part < parts; ++part) {
      const std::int32_t chosen = next[part * experts + e];
      next[part * experts + e] = static_cast<std::int32_t>(at);
      at += chosen;
    }
    const std::int64_t count = op.capacity > 0 ? op.capacity : at - row_count;
    require(at - row_count <= count, name, "an expert is chosen more often than its capacity");
    op.counts.as<std::int32_t>()[e] = static_cast<std::int32_t>(count);
    row_count = (row_count + count + op.alignment - 1) / op.alignment * op.alignment;
    require(row_count <= op.slot_of_row.shape.elements(), name, "more rows than slot_of_row has");
    for (; at < row_count; ++at) slot_of_row[at] = -1;
  }
  op.offsets.as<std::int32_t>()[experts] = static_cast<std::int32_t>(row_count);
  if (op.rows_in_use.given()) *op.rows_in_use.as<std::int32_t>() = static_cast<std::int32_t>(row_count);

  for_each_part([&](std::int32_t* place, std::int64_t first, std::int64_t last) {
    for (std::int64_t slot = first; slot < last; ++slot) {
      const std::int32_t expert = indices[slot];
      row_of_slot[slot] = expert < 0 ? -1 : place[expert]++;
      if (expert >= 0) slot_of_row[row_of_slot[slot]] = static_cast<std::int32_t>(slot);
    }
  });
}

namespace {

// Rows that are one number each (weights of slots): no call of memcpy.
template <class Word>
void gather_words(const GatherRows& op, std::int64_t begin, std::int64_t end) {
  const std::int32_t* index = op.index.as<std::int32_t>();
  for (std::int64_t r = begin; r < end; ++r) {
    require(index[r] < 0 || index[r] / op.divisor < op.x.rows(), "gather_rows", "an index beyond the rows");
    *row<Word>(op.y, r) = index[r] < 0 ? Word{0} : *row<Word>(op.x, index[r] / op.divisor);
  }
}

void gather_bytes(const GatherRows& op, std::int64_t begin, std::int64_t end) {
  const std::int32_t* index = op.index.as<std::int32_t>();
  const std::int64_t size = static_cast<std::int64_t>(size_of(op.y.dtype));
  const std::size_t bytes = static_cast<std::size_t>(columns_of(op.y) * size);
  for (std::int64_t r = begin; r < end; ++r) {
    std::byte* to = static_cast<std::byte*>(op.y.data) + r * op.y.stride * size;
    if (index[r] < 0) {
      std::memset(to, 0, bytes);
      continue;
    }
    const std::int64_t from = index[r] / op.divisor;
    require(from < op.x.rows(), "gather_rows", "an index beyond the rows");
    std::memcpy(to, static_cast<const std::byte*>(op.x.data) + from * op.x.stride * size, bytes);
  }
}

// Columns are summed in blocks that stay in the first-level cache.
template <class T, class Y>
void sum_one_row(const SumRows& op, std::int64_t t, std::int64_t choices, std::int64_t c0, std::int64_t c1,
                 Accumulator<T>* sums) {
  using Acc = Accumulator<T>;
  const std::int64_t columns = c1 - c0;
  if (op.residual.given()) {
    const Y* residual = row<Y>(op.residual, t) + c0;
#pragma omp simd
    for (std::int64_t c = 0; c < columns; ++c) sums[c] = widen_to<Acc>(residual[c]);
  } else {
    clear(sums, columns);
  }
  const T* pending = nullptr;  // added together with the next one: half the traffic on the sums
  const auto add = [&](const T* x) {
    if (pending == nullptr) {
      pending = x;
      return;
    }
    const T* earlier = pending;
#pragma omp simd
    for (std::int64_t c = 0; c < columns; ++c) sums[c] = (sums[c] + widen(earlier[c])) + widen(x[c]);
    pending = nullptr;
  };
  if (op.extra.given()) add(row<T>(op.extra, t) + c0);
  const std::int32_t* index = row<std::int32_t>(op.index, t);
  for (std::int64_t j = 0; j < choices; ++j) {
    require(index[j] < op.x.rows(), "sum_rows", "an index beyond the rows");
    if (index[j] >= 0) add(row<T>(op.x, index[j]) + c0);
  }
  Y* y = row<Y>(op.y, t) + c0;
  if (pending != nullptr) {
#pragma omp simd
    for (std::int64_t c = 0; c < columns; ++c) y[c] = narrow<Y>(sums[c] + widen(pending[c]));
  } else {
#pragma omp simd
    for (std::int64_t c = 0; c < columns; ++c) y[c] = narrow<Y>(sums[c]);
  }
}

}  // namespace

void gather_rows(Stream& stream, const GatherRows& op) {
  constexpr const char* name = "gather_rows";
  check_arguments(name, op);
  const std::int64_t rows = used_rows(name, op.rows_in_use, op.y.rows()), columns = columns_of(op.y);
  split_rows(stream, rows, columns, [&](std::int64_t begin, std::int64_t end) {
    const std::size_t size = columns == 1 ? size_of(op.y.dtype) : 0;
    if (size == 4)
      gather_words<std::uint32_t>(op, begin, end);
    else if (size == 8)
      gather_words<std::uint64_t>(op, begin, end);
    else
      gather_bytes(op, begin, end);
  });
}

void sum_rows(Stream& stream, const SumRows& op) {
  constexpr const char* name = "sum_rows";
  constexpr std::int64_t block = 1024;
  const std::int64_t rows = op.y.rows(), columns = columns_of(op.y);
  if (rows == 0) return;
  check_arguments(name, op);
  const std::int64_t choices = op.index.shape.elements() / rows;
  with_storage_and(name, op.x.dtype, op.y.dtype, [&](auto t, auto u) {
    using T = typename decltype(t)::type;
    using Y = typename decltype(u)::type;
    split_rows(stream, rows, columns * (choices + 1), [&](std::int64_t begin, std::int64_t end) {
      std::array<Accumulator<T>, block> sums;
      for (std::int64_t r = begin; r < end; ++r)
        for (std::int64_t c0 = 0; c0 < columns; c0 += block)
          sum_one_row<T, Y>(op, r, choices, c0, std::min(c0 + block, columns), sums.data());
    });
  });
}

}  // namespace weft::WEFT_ISA
