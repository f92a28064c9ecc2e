// `-`: y = x + W_down act(W_up norm(x));  gated: [gate | up] in one matrix, act(gate) up.
#include "weft/device/operations.h"
#include "weft/model/layers/layers.h"

namespace weft {

ValueId add_mlp(ModuleBuilder& b, const MlpSpec& spec, ValueId x) {
  const std::int64_t T = b.tokens(), H = b.config().hidden, F = spec.ffn;
  const bool gated = spec.activation.gated();
  const std::int64_t width = gated ? 2 * F : F;
  const DType compute = b.compute();
  const double eps = b.config().norm_epsilon;
  const bool zero_centred = b.config().zero_centred_norms;
  const Init zero{Init::Kind::constant, 0};

  const ParameterValues norm = b.norm_weight("norm_weight", Role::norm, H);
  std::vector<ParameterPart> parts, bias_parts;
  for (Role role : gated ? std::vector{Role::gate, Role::up} : std::vector{Role::up}) {
    parts.push_back(b.part(role, {F, H}, b.matrix_init()));
    bias_parts.push_back(b.part(role == Role::gate ? Role::gate_bias : Role::up_bias, {F}, zero));
  }
  const ParameterValues w1 = b.parameter("up_weight", {width, H}, parts);
  const ParameterValues w2 = b.parameter("down_weight", {H, F}, {b.part(Role::down, {H, F}, b.residual_init())});
  ParameterValues b1, b2;
  if (spec.bias) {
    b1 = b.parameter("up_bias", {width}, bias_parts);
    b2 = b.parameter("down_bias", {H}, {b.part(Role::down_bias, {H}, zero)});
  }

  const ValueId xn = b.activation("xn", compute, {T, H});
  const ValueId inverse = b.activation("inverse", b.accumulate(), {T});
  const ValueId h = b.activation("h", compute, {T, width});
  const ValueId a = b.activation("a", compute, {T, F});
  const ValueId y = b.activation("y", compute, {T, H});
  const ValueId dh = b.activation("d(h)", compute, {T, width});
  const ValueId da = b.scratch("d(a)", compute, {T, F});
  const ValueId dxn = b.scratch("d(xn)", compute, {T, H});
  const ValueId dx = b.gradient_of(x), dy = b.gradient_of(y);
  const ActivationSpec act = spec.activation;
  const bool bias = spec.bias;

  Piece& p = b.piece("mix");
  p.forward.uses = {{x},
                    {norm.value},
                    {w1.value},
                    {w2.value},
                    {xn, Access::write},
                    {inverse, Access::write},
                    {h, Access::write},
                    {a, Access::write},
                    {y, Access::write}};
  if (bias) p.forward.uses.insert(p.forward.uses.end(), {{b1.value}, {b2.value}});
  p.forward.run = [=](const Run& r) {
    r.ops().rms_norm(r.stream(), {r[x], r[norm.value], r[xn], r[inverse], 1, eps, zero_centred});
    Matmul up{r[xn], r[w1.value], r[h], Transposed::no, Transposed::yes};
    Matmul down{r[a], r[w2.value], r[y], Transposed::no, Transposed::yes};
    down.residual = r[x];
    if (bias) {
      up.bias = r[b1.value];
      down.bias = r[b2.value];
    }
    r.ops().matmul(r.stream(), up);
    r.ops().activation(r.stream(), {act, r[h], r[a]});
    r.ops().matmul(r.stream(), down);
  };

  p.backward.uses = {{dy},
                     {x},
                     {inverse},
                     {h},
                     {norm.value},
                     {w1.value},
                     {w2.value},
                     {dh, Access::write},
                     {da, Access::write},
                     {dxn, Access::write},
                     {dx, Access::write},
                     {norm.gradient, Access::add}};
  p.backward.run = [=](const Run& r) {
    r.ops().matmul(r.stream(), {r[dy], r[w2.value], r[da]});
    r.ops().activation_backward(r.stream(), {act, r[h], {}, r[da], r[dh]});
    r.ops().matmul(r.stream(), {r[dh], r[w1.value], r[dxn]});
    r.ops().rms_norm_backward(r.stream(), {r[x], r[norm.value], r[inverse], r[dxn], r[dx], r[dy], r[norm.gradient], 1,
                                           zero_centred, r.store(norm.gradient)});
  };

  p.weight_gradient.uses = {{dy}, {a}, {dh}, {xn}, {w2.gradient, Access::add}, {w1.gradient, Access::add}};
  if (bias)
    p.weight_gradient.uses.insert(p.weight_gradient.uses.end(),
                                  {{b1.gradient, Access::add}, {b2.gradient, Access::add}});
  p.weight_gradient.run = [=](const Run& r) {
    const auto store = [&](ParameterValues parameter) { return r.store(parameter.gradient); };
    r.ops().matmul(r.stream(), {r[dy], r[a], r[w2.gradient], Transposed::yes, Transposed::no, store(w2)});
    r.ops().matmul(r.stream(), {r[dh], r[xn], r[w1.gradient], Transposed::yes, Transposed::no, store(w1)});
    if (bias) {
      r.ops().column_sum(r.stream(), {r[dy], r[b2.gradient], store(b2)});
      r.ops().column_sum(r.stream(), {r[dh], r[b1.gradient], store(b1)});
    }
  };
  return y;
}

}  // namespace weft
