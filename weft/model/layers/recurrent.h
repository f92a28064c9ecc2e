// What `M` and `G` share: a recurrence between two projections, in = W_in norm(x) before it and y = x + W_out gated behind
// it, and the initial taps of its convolution.
#pragma once

#include "weft/model/builder.h"

namespace weft {

struct Projections {
  ValueId x, y, xn, inverse, in, gated;
  ValueId dx, dy, din, dgated, dxn;
  ParameterValues norm, w_in, w_out;
  double eps = 0;  // of the norm
  bool zero_centred = false;

  void enter(const Run& r) const;           // writes xn, inverse, in
  void leave(const Run& r) const;           // writes y
  void leave_backward(const Run& r) const;  // writes dgated
  void enter_backward(const Run& r) const;  // from din: writes dxn, dx, adds to the norm's gradient
  PieceCode weight_gradient() const;
};

// What PyTorch gives a convolution of so many taps.
Init convolution_init(std::int64_t taps);

}  // namespace weft
