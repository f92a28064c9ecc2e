// Moving rows of tokens to their experts and back. The contracts that hold for every operation: weft/device/operations.h.
#pragma once

#include <cstdint>

#include "weft/device/tensor.h"

namespace weft {

// Sorts the T * k (token, choice) slots by expert, stably: one row per slot.
//   counts [E], offsets [E + 1] (each a multiple of `alignment`), row_of_slot [T, k] (-1 where the slot has no row),
//   slot_of_row [R] (-1 for padding rows). All i32. An index of -1 makes no row. rows_in_use [1]: offsets[E].
// capacity > 0: every expert has exactly that many rows, its tokens' first, then padding; counts hold `capacity`. No
// expert may be chosen more often.
struct RouteRows {
  Tensor indices, counts, offsets, row_of_slot, slot_of_row, rows_in_use;
  std::int64_t alignment = 1, capacity = 0;
};
// Where each expert lies on `copies` ranks, a choice becomes one for each of them. Ranks hold `each` experts; for index x,
// x = h each + l:  y [T, k copies], y[.., j copies + c] = (h copies + c) each + l; a negative index stays. All i32.
struct CopyChoices {
  Tensor indices, y;
  std::int64_t each = 1, copies = 1;
};
// Rows received from the ranks of a group are ordered by source, within a source by expert; this sorts them by expert, within
// an expert by source. From source_counts i32 [sources, experts]:
//   counts [experts], offsets [experts + 1] (multiples of `alignment`), received_of_row [R] (-1 for padding rows),
//   row_of_received [B]; rows_in_use [1] = offsets[experts], received_in_use [1] = sum of all counts. All i32.
struct ArrangeRows {
  Tensor source_counts, counts, offsets, received_of_row, row_of_received, rows_in_use, received_in_use;
  std::int64_t alignment = 1;
};
// y[r] = x[index[r] / divisor] for r < rows_in_use (absent: all); where index[r] < 0: zeros. Rows of any dtype.
// places i32 [rows of x, divisor], optional, changes nothing: the inverse of the index, places[s] = r where index[r] = s
// and -1 where there is no such r (route_rows' row_of_slot). With it a GPU reads a row of x once for all its places.
struct GatherRows {
  Tensor x, index, y, rows_in_use;
  std::int64_t divisor = 1;
  Tensor places;
};
// y[t] = (residual[t] +) (extra[t] +) sum over j of x[index[t, j]], in the order of j; negative indices add nothing.
struct SumRows {
  Tensor x, index, y, residual, extra;
};

}  // namespace weft
