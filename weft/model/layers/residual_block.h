// Every kind of layer except `E`: a body between two products, added to the residual stream.
//
//   normalise     xn = norm(x)                       [T, H]
//   project_in    in = W_in xn (+ bias)
//   body          mixed = f(in), which depends on the kind of layer
//   project_out   y = x + W_out mixed (+ bias)       [T, H]
//
// Backward runs the four steps in reverse. On one tensor rank all of it is one piece, `mix`. Tensor ranks split W_in by rows
// and W_out by columns; then project_out gives a rank's part of a sum, and the layer is cut where it communicates
// (residual_block_cut.cc):
//
//   out_weight | norm | gather | mix | scatter | residual
//
// What several tensor ranks have of W_in (heads of keys that they share) is a SharedInput.
#pragma once

#include <functional>
#include <optional>

#include "weft/model/layers/weighted.h"

namespace weft {

// Rows of a weight that all tensor ranks hold, of which this one uses some, each for columns of `in`. Its gradient is the sum
// over tensor ranks; the rows that this rank does not use add nothing.
struct SharedInput {
  Linear w;
  struct Used {
    std::int64_t first = 0, count = 0, column = 0;
  };
  std::vector<Used> used;

  void forward(const Run& r, const Tensor& xn, const Tensor& in) const;
  void backward(const Run& r, const Tensor& din, const Tensor& dxn) const;  // adds to dxn
  void weight_gradient(const Run& r, const Tensor& din, const Tensor& xn) const;
};

// What comes after a sum over tensor ranks in the middle of a body, such as the norm of a Mamba layer over more columns than
// a rank has.
struct SecondHalf {
  PieceCode forward, backward;  // without project_out
  ValueId part, sum;            // what the first half writes in forward, and its sum over ranks
  ValueId dpart, dsum;          // what this one writes in backward
};

// `count` columns of `in` or `mixed`, or rows of a parameter, from `first` on: equal parts, one for each of `heads`. Context
// ranks that exchange heads each have as many of them, or share one where they outnumber them.
struct HeadSection {
  std::int64_t first = 0, count = 0, heads = 1;

  std::int64_t share(std::int64_t ranks) const { return count / std::min(heads, ranks); }
  std::int64_t first_of(std::int64_t rank, std::int64_t ranks) const {
    return first + (heads >= ranks ? rank : rank * heads / ranks) * share(ranks);
  }
  bool is_shared(std::int64_t ranks) const { return heads < ranks; }
};
// Sections side by side, given their widths and heads.
std::vector<HeadSection> sections_of(std::initializer_list<std::pair<std::int64_t, std::int64_t>> widths_and_heads);
std::int64_t width_of(const std::vector<HeadSection>& sections);
std::int64_t share_of(const std::vector<HeadSection>& sections, std::int64_t ranks);

struct ResidualBlock {
  ValueId x, xn, inverse, in, mixed, y;
  ValueId dx, dxn, din, dmixed, dy;
  Norm norm;
  Linear w_in, w_out;
  std::int64_t own_columns = 0;  // of `in`, the first, that W_in makes; 0: all
  // A weight that no gradient passes makes further columns of `in`, for a body that has the rows of other ranks.
  struct Aside {
    ValueId weight;
    std::int64_t column = 0, count = 0;
  } aside;
  std::vector<SharedInput> shared_inputs;

  // Their positions in a layer's lists are fixed: the norm's weight is its first parameter, xn and inverse are its
  // first values, dx and dy its last. The layer adds the rest between them, under its own names.
  void add_norm_weight(ModuleBuilder& b, ValueId from);
  void add_norm_values(ModuleBuilder& b);
  ValueId input_gradient(ModuleBuilder& b) const;  // of all rows of xn
  void add_gradients(ModuleBuilder& b);

  const TensorRanks& tensor_ranks() const { return cut_.ranks; }

  // Context ranks exchange heads for tokens around the body (residual_block_heads.cc): it has the tokens of `ranks`, in their
  // order, of this rank's heads. Called after the parameters are made, before the body's values, with the columns of `in` and
  // `mixed`.
  void exchange_heads(ModuleBuilder& b, TokenRanks ranks, std::vector<HeadSection> in, std::vector<HeadSection> mixed);
  // The rows that this rank's heads need of a parameter that the body uses, in its place there.
  ParameterValues rows_of_heads(ModuleBuilder& b, ParameterValues whole, std::vector<HeadSection> rows);
  bool exchanges_heads() const { return heads_.ranks.size > 1; }
  std::int64_t body_tokens(const ModuleBuilder& b) const {
    return exchanges_heads() ? heads_.ranks.count() : b.tokens();
  }
  // Of the tokens that the body has; invalid: from the beginning of their sample.
  ValueId body_positions(ModuleBuilder& b) const {
    if (!exchanges_heads()) return b.module().positions;
    return body_tokens(b) < b.all_tokens() ? b.module().neighbour_positions : b.module().all_positions;
  }

  // xn of all tokens, as the body sees it and as weight gradients do; after add_gradients.
  ValueId xn_of_body() const { return cut_.all_xn; }
  ValueId xn_of_weights() const { return cut_.xn_again; }
  // Adds the pieces and returns y. In forward and backward, `uses` covers all four steps, in the order the plan
  // lists them, as for one rank, and `run` only the body; weight_gradient is complete.
  // body: what of forward can run again by itself, without norm and project_out; the first part runs after project_in.
  // Of several tensor ranks alone: second is what of the body follows a sum over them, the other codes are of what is before it;
  // add_more adds pieces whose backward pass comes directly before the body's.
  ValueId add_piece(ModuleBuilder& b, PieceCode forward, PieceCode backward, PieceCode weight_gradient,
                    std::vector<PiecePart> body, std::optional<SecondHalf> second = {},
                    const std::function<void()>& add_more = {}) const;
  // For a body that communicates in the middle: its codes between the products with W_in and W_out and what add_middle adds.
  // before writes `in` and more from it, after writes `mixed`; after_backward reads d(mixed), before_backward writes d(in).
  struct SpreadBody {
    PieceCode before, after, after_backward, before_backward, weight_gradient;
    RecomputeModules modules = 0;  // of `before`
  };
  ValueId add_spread_pieces(ModuleBuilder& b, SpreadBody body,
                            const std::function<void(ModuleBuilder&)>& add_middle) const;
  // Gradients of the two weights and their biases; of several tensor ranks, of W_in alone.
  PieceCode weight_gradient() const;

 private:
  // What is cut differs from x, xn, y, ... at the seams. Made by add_gradients.
  struct Cut {
    TensorRanks ranks;
    Range counted;             // of the tokens of dy
    ValueId all_xn, xn_again;  // [T, H]: what mix reads in forward, and its weight gradient
    ValueId partial, sum;      // [T, H], [tokens of y, H]: before and after the sum over ranks
    ValueId all_dy;            // [T, H]
    ValueId dxn_sum;           // [tokens of x, H]
    ValueId unused;            // a norm's gradient by tokens that other ranks count
  };
  std::vector<PiecePart> parts(std::vector<PiecePart> body) const;       // of all four steps
  std::vector<PiecePart> body_parts(std::vector<PiecePart> body) const;  // with project_in
  void add_cut_pieces(ModuleBuilder& b, PieceCode forward, PieceCode backward, PieceCode weight_gradient,
                      std::vector<PiecePart> body, std::optional<SecondHalf> second,
                      const std::function<void()>& add_more) const;
  void add_cut_mix_piece(ModuleBuilder& b, PieceCode forward, PieceCode backward, PieceCode weight_gradient,
                         std::vector<PiecePart> body, std::optional<SecondHalf> second) const;
  void add_second_half(ModuleBuilder& b, SecondHalf second) const;
  PiecePart last_part() const;
  void add_out_weight_piece(ModuleBuilder& b) const;
  void add_norm_piece(ModuleBuilder& b) const;
  void add_gather_piece(ModuleBuilder& b, RecomputeModules modules) const;
  void add_second_gather_piece(ModuleBuilder& b) const;
  void add_scatter_piece(ModuleBuilder& b) const;
  void add_residual_piece(ModuleBuilder& b) const;

  // The exchange. W columns of in and V of mixed, w and v on a rank; t tokens here, T of all these ranks.
  struct Heads {
    struct Rows {
      ParameterValues whole, here;
      std::vector<HeadSection> sections;
    };
    TokenRanks ranks;                         // one: no exchange
    std::vector<HeadSection> in, din, mixed;  // din: those of in that have gradients
    std::vector<Rows> parameters;
    ValueId order, back;  // i32 [T]: the row of a token as received, and the token of a row
    ValueId in_sent, in_received, mixed_sent, mixed_received;      // [ranks, t, w], [ranks, t, v]
    ValueId din_sent, din_received, dmixed_sent, dmixed_received;  // likewise
  };
  // Of the rows that the products with W_in and W_out have: without an exchange, those of the body.
  struct Seams {
    ValueId in, mixed, din, dmixed;
  };
  void add_seams(ModuleBuilder& b);
  void add_head_pieces(ModuleBuilder& b, PieceCode forward, PieceCode backward, PieceCode weight_gradient,
                       std::vector<PiecePart> body) const;
  // residual_block_ends.cc. `before` runs after the product with W_in, `before_backward` before its backward, ...
  void add_in_piece(ModuleBuilder& b, PieceCode before, PieceCode before_backward, PieceCode more_weight_gradient,
                    RecomputeModules modules) const;
  void add_out_piece(ModuleBuilder& b, PieceCode after, PieceCode after_backward) const;
  PieceCode in_weight_gradient(const PieceCode& more) const;
  void add_cut_start(ModuleBuilder& b, RecomputeModules modules) const;
  void add_cut_end(ModuleBuilder& b) const;
  void add_spread_head_pieces(ModuleBuilder& b, SpreadBody body,
                              const std::function<void(ModuleBuilder&)>& add_middle) const;
  void add_to_heads_pieces(ModuleBuilder& b, RecomputeModules modules) const;
  void add_to_tokens_pieces(ModuleBuilder& b) const;
  PieceCode on_own_heads(PieceCode code) const;
  void deal_columns(const Run& r, const Tensor& from, ValueId sent, const std::vector<HeadSection>& sections) const;
  void join_columns(const Run& r, ValueId received, const Tensor& to, const std::vector<HeadSection>& sections) const;
  void order_rows(const Run& r, ValueId from, ValueId to, bool back) const;

  void normalise(const Run& r) const;                           // writes xn, inverse
  void project_in(const Run& r, ValueId from) const;            // writes in
  void project_out(const Run& r) const;                         // writes y
  void project_out_partly(const Run& r) const;                  // writes cut.partial
  void project_out_backward(const Run& r, ValueId dout) const;  // writes dmixed
  void project_in_backward(const Run& r) const;                 // writes dxn
  void normalise_backward(const Run& r) const;                  // writes dx, adds to the norm's gradient

  Cut cut_;
  Heads heads_;
  Seams seams_;
};

}  // namespace weft
