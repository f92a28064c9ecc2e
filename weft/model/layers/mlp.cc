// `-`: y = x + W_down act(W_up norm(x));  gated: [gate | up] in one matrix, act(gate) up.
#include "weft/device/operations.h"
#include "weft/model/layers/layers.h"
#include "weft/model/layers/residual_block.h"
#include "weft/model/layers/uses.h"

namespace weft {

namespace {

struct Mlp : ResidualBlock {
  ActivationSpec activation;
};

void add_parameters(ModuleBuilder& b, const MlpSpec& spec, Mlp& v) {
  const std::int64_t H = b.config().hidden, F = spec.ffn;
  const Init zero{Init::Kind::constant, 0};
  std::vector<ParameterPart> parts, bias_parts;
  for (Role role : spec.activation.gated() ? std::vector{Role::gate, Role::up} : std::vector{Role::up}) {
    parts.push_back(b.tensor_part(role, {F, H}, 0, b.matrix_init()));
    bias_parts.push_back(b.tensor_part(role == Role::gate ? Role::gate_bias : Role::up_bias, {F}, 0, zero));
  }
  const std::int64_t here = b.tensor_ranks().share(F), width = static_cast<std::int64_t>(parts.size()) * here;
  v.w_in = {b.parameter("up_weight", {width, H}, parts)};
  v.w_out = {b.parameter("down_weight", {H, here}, {b.tensor_part(Role::down, {H, F}, 1, b.residual_init())})};
  if (spec.bias) {
    v.w_in.bias = b.parameter("up_bias", {width}, bias_parts);
    v.w_out.bias = b.parameter("down_bias", {H}, {b.part(Role::down_bias, {H}, zero)});
  }
}

void add_values(ModuleBuilder& b, const MlpSpec& spec, Mlp& v) {
  const std::int64_t T = b.tokens(), H = b.config().hidden, F = b.tensor_ranks().share(spec.ffn);
  const std::int64_t width = spec.activation.gated() ? 2 * F : F;
  const DType compute = b.compute();
  v.add_norm_values(b);
  v.in = b.activation("h", compute, {T, width});
  v.mixed = b.activation("a", compute, {T, F});
  v.y = b.activation("y", compute, {b.stream_tokens(), H});
  v.din = b.activation("d(h)", compute, {T, width});
  v.dmixed = b.scratch("d(a)", compute, {T, F});
  v.dxn = v.input_gradient(b);
  v.add_gradients(b);
}

PieceCode forward(const Mlp& v) {
  PieceCode f;
  reads(f, {v.x, v.norm.value, v.w_in.value, v.w_out.value});
  writes(f, {v.xn, v.inverse, v.in, v.mixed, v.y});
  if (v.w_in.has_bias()) reads(f, {v.w_in.bias.value, v.w_out.bias.value});
  f.run = [v](const Run& r) { r.ops().activation(r.stream(), {v.activation, r[v.in], r[v.mixed]}); };
  return f;
}

std::vector<PiecePart> parts(const Mlp& v) {
  PiecePart products{"products", set_of({RecomputeModule::mlp})};
  writes(products.code, {v.in, v.mixed});
  products.code.run = forward(v).run;
  return {std::move(products)};
}

PieceCode backward(const Mlp& v) {
  PieceCode g;
  reads(g, {v.dy, v.x, v.inverse, v.in, v.norm.value, v.w_in.value, v.w_out.value});
  writes(g, {v.din, v.dmixed, v.dxn, v.dx});
  adds_to(g, {v.norm.gradient});
  g.run = [v](const Run& r) {
    r.ops().activation_backward(r.stream(), {v.activation, r[v.in], {}, r[v.dmixed], r[v.din]});
  };
  return g;
}

}  // namespace

ValueId add_mlp(ModuleBuilder& b, const MlpSpec& spec, ValueId x) {
  Mlp v;
  v.activation = spec.activation;
  v.add_norm_weight(b, x);
  add_parameters(b, spec, v);
  add_values(b, spec, v);
  return v.add_piece(b, forward(v), backward(v), v.weight_gradient(), parts(v));
}

}  // namespace weft
