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

struct ResidualBlock {
  ValueId x, xn, inverse, in, mixed, y;
  ValueId dx, dxn, din, dmixed, dy;
  Norm norm;
  Linear w_in, w_out;
  std::int64_t own_columns = 0;  // of `in`, the first, that W_in makes; 0: all
  std::vector<SharedInput> shared_inputs;

  // Their positions in a layer's lists are fixed: the norm's weight is its first parameter, xn and inverse are its
  // first values, dx and dy its last. The layer adds the rest between them, under its own names.
  void add_norm_weight(ModuleBuilder& b, ValueId from);
  void add_norm_values(ModuleBuilder& b);
  ValueId input_gradient(ModuleBuilder& b) const;  // of all rows of xn
  void add_gradients(ModuleBuilder& b);

  const TensorRanks& tensor_ranks() const { return cut_.ranks; }
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
  void add_second_half(ModuleBuilder& b, SecondHalf second) const;
  PiecePart last_part() const;
  void add_out_weight_piece(ModuleBuilder& b) const;
  void add_norm_piece(ModuleBuilder& b) const;
  void add_gather_piece(ModuleBuilder& b, RecomputeModules modules) const;
  void add_second_gather_piece(ModuleBuilder& b) const;
  void add_scatter_piece(ModuleBuilder& b) const;
  void add_residual_piece(ModuleBuilder& b) const;

  void normalise(const Run& r) const;                           // writes xn, inverse
  void project_in(const Run& r, ValueId from) const;            // writes in
  void project_out(const Run& r) const;                         // writes y
  void project_out_partly(const Run& r) const;                  // writes cut.partial
  void project_out_backward(const Run& r, ValueId dout) const;  // writes dmixed
  void project_in_backward(const Run& r) const;                 // writes dxn
  void normalise_backward(const Run& r) const;                  // writes dx, adds to the norm's gradient

  Cut cut_;
};

}  // namespace weft
