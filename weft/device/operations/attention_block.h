// Attention over some keys at a time, for ranks that each have some of a sequence's tokens. The contracts that hold for every
// operation: weft/device/operations.h.
#pragma once

#include "weft/device/operations/store.h"
#include "weft/device/tensor.h"

namespace weft {

// Which keys of a block a query sees. places, key_places: i32 [Tq], [Tk], ascending: the token that each is, in the whole
// batch. Query i sees key j if 0 <= places[i] - key_places[j] (< window, if window > 0) and both are of one document:
//   first, end: i32 [Tq]: those are the keys first[i] .. end[i] - 1; first[i] = end[i] where it sees none.
// boundaries: i32 [tokens of the batch], as in Attention; absent: sequences of `length`.
struct VisibleKeys {
  Tensor places, key_places, boundaries, first, end;
  std::int64_t length = 0, window = 0;
};
// Attention of q [Tq, heads * dim] over a block k [Tk, kv_heads * dim], v [Tk, kv_heads * value_dim]; strided rows.
//   out acc [Tq, heads * value_dim], lse acc [heads, Tq]
// store: write: out and lse over this block alone, and the sinks if there are any; a query that sees nothing has out 0 and lse
// -infinity. add: they hold the same over other keys, and get that over both, as Attention would. sinks: as in Attention;
// absent with add.
struct AttentionBlock {
  Tensor q, k, v, out, lse, first, end, sinks;
  std::int64_t heads = 1, kv_heads = 1, dim = 0, value_dim = 0;
  double scale = 1;
  Store store = Store::write;
};
// delta acc [heads, T] = dout . out; dsinks acc [heads] = - sum over tokens of exp(sink - lse) delta, absent without sinks.
// lse: over all keys and the sink. out: any dtype; dout: the model's.
struct AttentionDelta {
  Tensor out, dout, lse, sinks, delta, dsinks;
  std::int64_t heads = 1, value_dim = 0;
};
// Gradients through one block, of attention over all blocks: forward.lse is that of all, forward.out is not used.
// dq, dk, dv acc, (+)=.
struct AttentionBlockBackward {
  AttentionBlock forward;  // without sinks
  Tensor dout, delta, dq, dk, dv;
  Store store_queries = Store::write, store_keys = Store::write;
};

}  // namespace weft
