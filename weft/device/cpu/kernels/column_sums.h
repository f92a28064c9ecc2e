// Sums over the rows of a matrix, column by column, in an order that depends neither on the number of threads nor on
// timing: rows in chunks of a fixed length, each added up on its own, then the chunks in order. Two levels also keep the
// rounding error of long float sums small.
#pragma once

#include "weft/device/cpu/kernels/dispatch.h"
#include "weft/device/operations/store.h"

namespace weft::WEFT_ISA {

constexpr std::int64_t rows_per_chunk = 128, columns_per_block = 512;

// y [columns] (+)= the sums. add_rows(sums, r0, r1, c0, c1) adds elements [r0, r1) x [c0, c1) to sums[0 .. c1 - c0).
template <class Acc, class Y, class AddRows>
void column_sums(Stream& stream, std::int64_t rows, std::int64_t columns, Y* y, Store store, const AddRows& add_rows) {
  const std::int64_t chunks = std::max<std::int64_t>((rows + rows_per_chunk - 1) / rows_per_chunk, 1);
  const std::int64_t blocks = (columns + columns_per_block - 1) / columns_per_block;
  Acc* partial = static_cast<Acc*>(thread_scratch(static_cast<std::size_t>(chunks * columns) * sizeof(Acc)));
  const std::int64_t elements_per_item = std::min(rows, rows_per_chunk) * std::min(columns, columns_per_block);
  split_rows(stream, chunks * blocks, elements_per_item, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t chunk = item / blocks, c0 = item % blocks * columns_per_block;
      const std::int64_t c1 = std::min(c0 + columns_per_block, columns);
      Acc* sums = partial + chunk * columns + c0;
      for (std::int64_t c = 0; c < c1 - c0; ++c) sums[c] = 0;
      add_rows(sums, chunk * rows_per_chunk, std::min((chunk + 1) * rows_per_chunk, rows), c0, c1);
    }
  });
  split_rows(stream, blocks, chunks * columns_per_block, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const std::int64_t c0 = block * columns_per_block, c1 = std::min(c0 + columns_per_block, columns);
      for (std::int64_t chunk = 1; chunk < chunks; ++chunk) {
        const Acc* part = partial + chunk * columns;
#pragma omp simd
        for (std::int64_t c = c0; c < c1; ++c) partial[c] += part[c];
      }
      if (store == Store::add) {
#pragma omp simd
        for (std::int64_t c = c0; c < c1; ++c) y[c] = narrow<Y>(widen_to<Acc>(y[c]) + partial[c]);
      } else {
#pragma omp simd
        for (std::int64_t c = c0; c < c1; ++c) y[c] = narrow<Y>(partial[c]);
      }
    }
  });
}

}  // namespace weft::WEFT_ISA
