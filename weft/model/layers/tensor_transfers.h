// The code of pieces that communicate among tensor ranks.
#pragma once

#include "weft/model/layers/uses.h"
#include "weft/model/tensor_ranks.h"

namespace weft {

// to [ranks, ...] = `part` of every rank.
inline PieceCode gathered(const TensorRanks& ranks, ValueId part, ValueId to) {
  PieceCode code;
  reads(code, {part});
  writes(code, {to});
  code.collectives = {{CollectiveKind::all_gather, ranks.group, part, to, {}, {}}};
  return code;
}

// to = this rank's part of the sum of `partial` over ranks. `to` must say that it is such a sum (Value::summed_over).
inline PieceCode scattered(const TensorRanks& ranks, ValueId partial, ValueId to) {
  PieceCode code;
  reads(code, {partial});
  writes(code, {to});
  code.collectives = {{CollectiveKind::reduce_scatter, ranks.group, partial, to, {}, {}}};
  return code;
}

// to = the sum over ranks, of all rows.
inline PieceCode summed(const TensorRanks& ranks, ValueId partial, ValueId to) {
  PieceCode code;
  if (to != partial) reads(code, {partial});
  writes(code, {to});
  code.collectives = {{CollectiveKind::all_reduce, ranks.group, partial, to, {}, {}}};
  return code;
}
// In place.
inline PieceCode summed(const TensorRanks& ranks, ValueId partial) { return summed(ranks, partial, partial); }

}  // namespace weft
