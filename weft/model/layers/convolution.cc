#include "weft/model/layers/convolution.h"

#include <cmath>

#include "weft/device/operations.h"
#include "weft/model/layers/uses.h"

namespace weft {

namespace {

CausalConvolution operation(const Run& r, const Convolution& c, const Tensor& x) {
  CausalConvolution op;
  op.x = c.shares() ? x.slice_columns(0, c.own) : x;
  op.weight = r[c.value];
  if (c.has_bias()) op.bias = r[c.bias.value];
  op.boundaries = given(r, c.boundaries);
  op.length = c.length;
  return op;
}

CausalConvolution operation(const Run& r, const Convolution& c, const Tensor& x, const SharedInput::Used& used) {
  CausalConvolution op;
  op.x = x.slice_columns(used.column, used.count);
  op.weight = r[c.shared_weight.value].slice_rows(used.first, used.count);
  if (c.shared_bias.value.valid()) op.bias = r[c.shared_bias.value].slice_rows(used.first, used.count);
  op.boundaries = given(r, c.boundaries);
  op.length = c.length;
  return op;
}

}  // namespace

void Convolution::forward(const Run& r, const Tensor& x, const Tensor& y) const {
  CausalConvolution op = operation(r, *this, x);
  op.y = shares() ? y.slice_columns(0, own) : y;
  r.ops().causal_convolution(r.stream(), op);
  for (const SharedInput::Used& used : shared) {
    op = operation(r, *this, x, used);
    op.y = y.slice_columns(used.column, used.count);
    r.ops().causal_convolution(r.stream(), op);
  }
}

void Convolution::backward(const Run& r, const Tensor& x, const Tensor& dy, const Tensor& dx) const {
  const auto mine = [&](const Tensor& all) { return shares() ? all.slice_columns(0, own) : all; };
  const CausalConvolution op = operation(r, *this, x);
  r.ops().causal_convolution_weight_gradient(
      r.stream(), {op, mine(dy), r[gradient], has_bias() ? r[bias.gradient] : Tensor{}, r.store(gradient)});
  r.ops().causal_convolution_backward(r.stream(), {op, mine(dy), mine(dx)});
  if (!shares()) return;
  const Tensor all = r[shared_weight.gradient];
  Tensor biases;
  if (shared_bias.value.valid()) biases = r[shared_bias.gradient];
  if (r.store(shared_weight.gradient) == Store::write) {
    r.ops().fill(r.stream(), {all, 0});
    if (biases.given()) r.ops().fill(r.stream(), {biases, 0});
  }
  for (const SharedInput::Used& used : shared) {
    const CausalConvolution some = operation(r, *this, x, used);
    const Tensor d = dy.slice_columns(used.column, used.count);
    r.ops().causal_convolution_weight_gradient(
        r.stream(), {some, d, all.slice_rows(used.first, used.count),
                     biases.given() ? biases.slice_rows(used.first, used.count) : Tensor{}, Store::add});
    r.ops().causal_convolution_backward(r.stream(), {some, d, dx.slice_columns(used.column, used.count)});
  }
}

Init convolution_init(std::int64_t taps) {
  const double bound = 1 / std::sqrt(static_cast<double>(taps));
  return {Init::Kind::uniform, -bound, bound};
}

}  // namespace weft
