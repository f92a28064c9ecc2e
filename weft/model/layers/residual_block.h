// Every kind of layer except `E`: a body between two products, added to the residual stream.
//
//   normalise     xn = norm(x)                       [T, H]
//   project_in    in = W_in xn (+ bias)
//   body          mixed = f(in), which depends on the kind of layer
//   project_out   y = x + W_out mixed (+ bias)       [T, H]
//
// Backward runs the four steps in reverse. A layout that splits W_in by rows and W_out by columns communicates between
// normalise and project_in, and between the product of project_out and its residual.
#pragma once

#include "weft/model/layers/weighted.h"

namespace weft {

struct ResidualBlock {
  ValueId x, xn, inverse, in, mixed, y;
  ValueId dx, dxn, din, dmixed, dy;
  Norm norm;
  Linear w_in, w_out;

  // Their positions in a layer's lists are fixed: the norm's weight is its first parameter, xn and inverse are its
  // first values, dx and dy its last. The layer adds the rest between them, under its own names.
  void add_norm_weight(ModuleBuilder& b, ValueId from);
  void add_norm_values(ModuleBuilder& b);
  void add_gradients(ModuleBuilder& b);

  // Adds the piece `mix` and returns y. In forward and backward, `uses` covers all four steps, in the order the plan
  // lists them, and `run` only the body; weight_gradient is complete.
  // body: what of forward can run again by itself, without norm and project_out; the first part runs after project_in.
  ValueId add_piece(ModuleBuilder& b, PieceCode forward, PieceCode backward, PieceCode weight_gradient,
                    std::vector<PiecePart> body) const;
  // Gradients of the two weights, without biases.
  PieceCode weight_gradient() const;

 private:
  std::vector<PiecePart> parts(std::vector<PiecePart> body) const;

  void normalise(const Run& r) const;             // writes xn, inverse
  void project_in(const Run& r) const;            // writes in
  void project_out(const Run& r) const;           // writes y
  void project_out_backward(const Run& r) const;  // writes dmixed
  void project_in_backward(const Run& r) const;   // writes dxn
  void normalise_backward(const Run& r) const;    // writes dx, adds to the norm's gradient
};

}  // namespace weft
