#include "weft/model/layers/convolution.h"

#include <cmath>

#include "weft/device/operations.h"
#include "weft/model/layers/uses.h"

namespace weft {

namespace {

CausalConvolution operation(const Run& r, const Convolution& c, const Tensor& x) {
  CausalConvolution op;
  op.x = x;
  op.weight = r[c.value];
  if (c.has_bias()) op.bias = r[c.bias.value];
  op.boundaries = given(r, c.boundaries);
  op.length = c.length;
  return op;
}

}  // namespace

void Convolution::forward(const Run& r, const Tensor& x, const Tensor& y) const {
  CausalConvolution op = operation(r, *this, x);
  op.y = y;
  r.ops().causal_convolution(r.stream(), op);
}

void Convolution::backward(const Run& r, const Tensor& x, const Tensor& dy, const Tensor& dx) const {
  const CausalConvolution op = operation(r, *this, x);
  r.ops().causal_convolution_weight_gradient(
      r.stream(), {op, dy, r[gradient], has_bias() ? r[bias.gradient] : Tensor{}, r.store(gradient)});
  r.ops().causal_convolution_backward(r.stream(), {op, dy, dx});
}

Init convolution_init(std::int64_t taps) {
  const double bound = 1 / std::sqrt(static_cast<double>(taps));
  return {Init::Kind::uniform, -bound, bound};
}

}  // namespace weft
