#include "weft/model/layers/weighted.h"

#include "weft/device/operations.h"

namespace weft {

void Linear::forward(const Run& r, const Tensor& in, const Tensor& out, const Tensor& residual) const {
  Matmul product{in, r[value], out, Transposed::no, Transposed::yes};
  if (has_bias()) product.bias = r[bias.value];
  product.residual = residual;
  r.ops().matmul(r.stream(), product);
}

void Linear::backward(const Run& r, const Tensor& dout, const Tensor& din) const {
  r.ops().matmul(r.stream(), {dout, r[value], din});
}

void Linear::weight_gradient(const Run& r, ValueId dout, ValueId in) const {
  r.ops().matmul(r.stream(), {r[dout], r[in], r[gradient], Transposed::yes, Transposed::no, r.store(gradient)});
}

void Linear::bias_gradient(const Run& r, ValueId dout) const {
  r.ops().column_sum(r.stream(), {r[dout], r[bias.gradient], r.store(bias.gradient)});
}

void Norm::forward(const Run& r, const Tensor& x, const Tensor& y, ValueId inverse) const {
  r.ops().rms_norm(r.stream(), {x, r[value], y, r[inverse], groups, epsilon, zero_centred});
}

void Norm::backward(const Run& r, const Tensor& x, ValueId inverse, const Tensor& dy, const Tensor& dx,
                    const Tensor& residual) const {
  r.ops().rms_norm_backward(
      r.stream(), {x, r[value], r[inverse], dy, dx, residual, r[gradient], groups, zero_centred, r.store(gradient)});
}

void Norm::backward(const Run& r, const Tensor& x, ValueId inverse, const Tensor& dy, const Tensor& dx,
                    const Tensor& residual, Range counted, ValueId unused) const {
  if (!unused.valid()) return backward(r, x, inverse, dy, dx, residual);
  const std::int64_t end = counted.first + counted.count;
  const auto add = [&](std::int64_t first, std::int64_t count, ValueId to, Store store) {
    if (count == 0 && to == unused) return;
    const auto rows = [&](const Tensor& all) { return all.given() ? all.slice_rows(first, count) : all; };
    r.ops().rms_norm_backward(r.stream(), {rows(x), r[value], r[inverse].slice_rows(first * groups, count * groups),
                                           rows(dy), rows(dx), rows(residual), r[to], groups, zero_centred, store});
  };
  add(0, counted.first, unused, Store::write);
  add(counted.first, counted.count, gradient, r.store(gradient));
  add(end, x.rows() - end, unused, Store::write);
}

Norm add_norm(ModuleBuilder& b, const std::string& name, Role role, std::int64_t width) {
  return {b.norm_weight(name, role, width), b.config().norm_epsilon, b.config().zero_centred_norms};
}

}  // namespace weft
