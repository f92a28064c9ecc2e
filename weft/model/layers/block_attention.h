// Attention of context ranks that keep their queries and send each other keys and values: the pieces between the one that
// makes queries, keys and values and the one that reads the result.
//
// p2p, n ranks: step s is attention over the keys of the rank s places before this one.
//   keys.s        to_next: the keys of step s - 1, while these are computed with
//   attend.s      adds to out and lse; backward: adds to dq, and to the keys' gradient of step s
//   keys_back.s   backward only, to_previous: the keys of step s - 1. So only those of the last step are kept
//   gradients.s   backward only, to_previous: the keys' gradient, which arrives at its rank as it gets complete
// all_gather:
//   gather        all keys; backward: reduce_scatter of their gradients
//   attend        as on one rank, for this rank's queries
//   gather_again  backward only: all keys, so that nobody keeps them
#pragma once

#include "weft/model/builder.h"
#include "weft/model/layers/uses.h"

namespace weft {

// Constants i32 [T] for the T tokens of these ranks: the row of a token as received, rank after rank, and the token of a row;
// tokens are numbered in their order.
std::pair<ValueId, ValueId> add_row_order(ModuleBuilder& b, const TokenRanks& ranks);

// What this layer's ranks are by its context_transfer: those that exchange heads, those that send each other keys.
TokenRanks heads_of(const ModuleBuilder& b);
TokenRanks ring_of(const ModuleBuilder& b);

struct BlockAttention {
  TokenRanks ranks;  // that send each other keys
  bool gathers = false;
  std::int64_t heads = 1, kv_heads = 1, dim = 0, value_dim = 0, window = 0, length = 0;
  double scale = 1;
  ParameterValues sinks;  // may be invalid
  ValueId boundaries;     // of all tokens; may be invalid
  ValueId queries;        // columns of it, from query_column on
  std::int64_t query_column = 0;

  std::int64_t tokens() const { return std::ssize(ranks.here()); }  // t
  // keys: [t, key width + value width], what travels. out, lse, dq, dkeys: acc; delta [heads, t]: acc.
  ValueId keys, out, lse, dout, delta, dq, dkeys, dsinks;

  std::int64_t key_width() const { return kv_heads * dim; }
  std::int64_t width() const { return kv_heads * (dim + value_dim); }
  std::int64_t out_width() const { return heads * value_dim; }
  Tensor k(const Tensor& both) const { return both.slice_columns(0, key_width()); }
  Tensor v(const Tensor& both) const { return both.slice_columns(key_width(), kv_heads * value_dim); }

  void add_values(ModuleBuilder& b);
  void add_pieces(ModuleBuilder& b) const;
  // keys = [k | v]: at the end of the piece that makes them.
  void pack(const Run& r, const Tensor& keys_here, const Tensor& values_here) const;
  // delta, and the gradient of the sinks, from the result in the model's dtype: in the backward pass of what reads it.
  void add_delta(PieceCode& code, ValueId result) const;

 private:
  struct Step {
    ValueId keys, keys_again;     // in the forward and in the backward pass
    ValueId dkeys, dkeys_before;  // with and without this step's part
    ValueId places;               // i32 [t]: the tokens that its keys are
    bool first = false, last = false;
  };
  void add_turning_pieces(ModuleBuilder& b) const;
  void add_gathering_pieces(ModuleBuilder& b) const;
  PieceCode attend(const Step& step) const;
  PieceCode attend_backward(const Step& step) const;
  void find_keys(const Run& r, ValueId key_places) const;

  ValueId places, begin, end;  // i32 [t]: the tokens here; which keys of a block they see
};

}  // namespace weft
