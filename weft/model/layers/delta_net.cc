// `G`: gated delta net. [q | k | v | z | beta | alpha] = W_in norm(x); [q | k | v] through the convolution; heads of q and
// k to length one (q times key_dim^-1/2); the gated delta rule; then the norm of every value head times silu(z), and W_out
// of that on top of the residual stream.
//
// T tokens, H hidden, Dk = key_heads * key_dim, Dv = heads * head_dim. Backward keeps one state for every chunk and head.
#include <cmath>

#include "weft/device/operations.h"
#include "weft/model/layers/layers.h"
#include "weft/model/layers/recurrent.h"

namespace weft {

namespace {

struct Values : Projections {
  ValueId conv, unit, states, read, head_inverse;
  ValueId dconv, dread, sums;
  ParameterValues w_conv, A_log, dt_bias, head_norm;
};

// Where the parts lie in [q | k | v | z | beta | alpha]; [q | k | v] and [q | k] begin in the same way.
struct Sizes {
  std::int64_t keys, values, heads;
  Tensor qkv(const Tensor& in) const { return in.slice_columns(0, 2 * keys + values); }
  Tensor z(const Tensor& in) const { return in.slice_columns(2 * keys + values, values); }
  Tensor beta(const Tensor& in) const { return in.slice_columns(2 * (keys + values), heads); }
  Tensor alpha(const Tensor& in) const { return in.slice_columns(2 * (keys + values) + heads, heads); }
  Tensor q(const Tensor& conv) const { return conv.slice_columns(0, keys); }
  Tensor k(const Tensor& conv) const { return conv.slice_columns(keys, keys); }
  Tensor v(const Tensor& conv) const { return conv.slice_columns(2 * keys, values); }
};

CausalConvolution convolution(const Run& r, const Values& v, const Sizes& s, std::int64_t length) {
  CausalConvolution op;
  op.x = s.qkv(r[v.in]);
  op.weight = r[v.w_conv.value];
  op.length = length;
  return op;
}

// Of the queries, or of the keys.
L2Norm unit_length(const Run& r, const Values& v, const Sizes& s, const DeltaNetSpec& spec, bool queries) {
  L2Norm op;
  op.x = queries ? s.q(r[v.conv]) : s.k(r[v.conv]);
  op.groups = spec.key_heads;
  if (queries) op.scale = 1 / std::sqrt(static_cast<double>(spec.key_dim));
  return op;
}

DeltaRule rule(const Run& r, const Values& v, const Sizes& s, const DeltaNetSpec& spec, std::int64_t length) {
  DeltaRule op;
  op.q = s.q(r[v.unit]);
  op.k = s.k(r[v.unit]);
  op.v = s.v(r[v.conv]);
  op.a = s.alpha(r[v.in]);
  op.b = s.beta(r[v.in]);
  op.A_log = r[v.A_log.value];
  op.dt_bias = r[v.dt_bias.value];
  op.states = r[v.states];
  op.length = length;
  op.chunk = spec.chunk;
  op.heads = spec.heads;
  op.key_heads = spec.key_heads;
  op.dim = spec.key_dim;
  op.value_dim = spec.head_dim;
  return op;
}

Values declare(ModuleBuilder& b, const DeltaNetSpec& spec, ValueId x) {
  const std::int64_t T = b.tokens(), H = b.config().hidden, Dk = spec.key_width(), Dv = spec.width();
  const std::int64_t channels = spec.channels(), width = channels + Dv + 2 * spec.heads;
  const std::int64_t chunks = chunks_of(T, b.options().length, spec.chunk);
  const DType compute = b.compute(), acc = b.accumulate();
  const Init taps = convolution_init(spec.taps);
  const auto rows = [&](Role role, std::int64_t count) { return b.part(role, {count, H}, b.matrix_init()); };
  Values v;
  v.x = x;
  v.norm = b.norm_weight("norm_weight", Role::norm, H);
  v.w_in = b.parameter("input_weight", {width, H},
                       {rows(Role::q, Dk), rows(Role::k, Dk), rows(Role::v, Dv), rows(Role::z, Dv),
                        rows(Role::beta, spec.heads), rows(Role::alpha, spec.heads)});
  v.w_conv = b.parameter("conv_weight", {channels, spec.taps},
                         {b.part(Role::conv_q, {Dk, spec.taps}, taps), b.part(Role::conv_k, {Dk, spec.taps}, taps),
                          b.part(Role::conv_v, {Dv, spec.taps}, taps)});
  b.keep_gradient_precise(v.w_conv);
  const Shape heads{spec.heads};
  v.A_log = b.precise_parameter("A_log", heads, {b.part(Role::A_log, heads, {Init::Kind::log_uniform, 1, 16})});
  v.dt_bias = b.precise_parameter("dt_bias", heads, {b.part(Role::dt_bias, heads, {Init::Kind::constant, 1})});
  // Never zero-centred, also where the other norms are.
  v.head_norm = b.parameter("head_norm_weight", {spec.head_dim},
                            {b.part(Role::mixer_norm, {spec.head_dim}, {Init::Kind::constant, 1})});
  v.w_out = b.parameter("output_weight", {H, Dv}, {b.part(Role::output, {H, Dv}, b.residual_init())});

  v.xn = b.activation("xn", compute, {T, H});
  v.inverse = b.activation("inverse", acc, {T});
  v.in = b.activation("in", compute, {T, width});
  v.conv = b.activation("conv", compute, {T, channels});
  v.unit = b.activation("unit", compute, {T, 2 * Dk});
  v.states = b.activation("states", acc, {chunks, spec.heads * spec.key_dim * spec.head_dim});
  v.read = b.activation("read", compute, {T, Dv});
  v.head_inverse = b.activation("head_inverse", acc, {T * spec.heads});
  v.gated = b.activation("gated", compute, {T, Dv});
  v.y = b.activation("y", compute, {T, H});
  v.din = b.activation("d(in)", compute, {T, width});
  v.dgated = b.scratch("d(gated)", compute, {T, Dv});
  v.dread = b.scratch("d(read)", compute, {T, Dv});
  v.dconv = b.scratch("d(conv)", compute, {T, channels});
  v.sums = b.scratch("sums", acc, {chunks, 2 * spec.heads});
  v.dxn = b.scratch("d(xn)", compute, {T, H});
  v.dx = b.gradient_of(x);
  v.dy = b.gradient_of(v.y);
  v.eps = b.config().norm_epsilon;
  v.zero_centred = b.config().zero_centred_norms;
  return v;
}

}  // namespace

ValueId add_delta_net(ModuleBuilder& b, const DeltaNetSpec& spec, ValueId x) {
  const std::int64_t length = b.options().length;
  const Sizes s{spec.key_width(), spec.width(), spec.heads};
  const Values v = declare(b, spec, x);
  const auto gate = [=](const Run& r) {
    return GatedNorm{r[v.read], s.z(r[v.in]), r[v.head_norm.value], {}, r[v.head_inverse], spec.heads, v.eps, false};
  };

  Piece& p = b.piece("mix");
  PieceCode& f = p.forward;
  for (ValueId in : {x, v.norm.value, v.w_in.value, v.w_conv.value, v.A_log.value, v.dt_bias.value, v.head_norm.value,
                     v.w_out.value})
    f.uses.push_back({in});
  for (ValueId out : {v.xn, v.inverse, v.in, v.conv, v.unit, v.states, v.read, v.head_inverse, v.gated, v.y})
    f.uses.push_back({out, Access::write});
  f.run = [=](const Run& r) {
    v.enter(r);
    CausalConvolution convolve = convolution(r, v, s, length);
    convolve.y = r[v.conv];
    r.ops().causal_convolution(r.stream(), convolve);
    for (const bool queries : {true, false}) {
      L2Norm norm = unit_length(r, v, s, spec, queries);
      norm.y = queries ? s.q(r[v.unit]) : s.k(r[v.unit]);
      r.ops().l2_norm(r.stream(), norm);
    }
    DeltaRule go = rule(r, v, s, spec, length);
    go.y = r[v.read];
    r.ops().delta_rule(r.stream(), go);
    GatedNorm norm = gate(r);
    norm.y = r[v.gated];
    r.ops().gated_norm(r.stream(), norm);
    v.leave(r);
  };

  PieceCode& g = p.backward;
  for (ValueId in : {v.dy, x, v.inverse, v.in, v.conv, v.unit, v.states, v.read, v.head_inverse, v.norm.value,
                     v.w_in.value, v.w_conv.value, v.A_log.value, v.dt_bias.value, v.head_norm.value, v.w_out.value})
    g.uses.push_back({in});
  for (ValueId out : {v.din, v.dgated, v.dread, v.dconv, v.sums, v.dxn, v.dx}) g.uses.push_back({out, Access::write});
  for (ParameterValues w : {v.norm, v.w_conv, v.A_log, v.dt_bias, v.head_norm})
    g.uses.push_back({w.gradient, Access::add});
  g.run = [=](const Run& r) {
    const Tensor din = r[v.din], dconv = r[v.dconv];
    v.leave_backward(r);
    r.ops().gated_norm_backward(r.stream(), {gate(r), r[v.dgated], r[v.dread], s.z(din), r[v.head_norm.gradient],
                                             r.store(v.head_norm.gradient)});
    DeltaRuleBackward back{
        rule(r, v, s, spec, length), r[v.dread], s.q(dconv), s.k(dconv), s.v(dconv), s.alpha(din), s.beta(din)};
    back.dA_log = r[v.A_log.gradient];
    back.ddt_bias = r[v.dt_bias.gradient];
    back.sums = r[v.sums];
    back.store = r.store(v.A_log.gradient);
    r.ops().delta_rule_backward(r.stream(), back);
    for (const bool queries : {true, false}) {
      const Tensor d = queries ? s.q(dconv) : s.k(dconv);
      r.ops().l2_norm_backward(r.stream(), {unit_length(r, v, s, spec, queries), d, d});
    }
    const CausalConvolution convolve = convolution(r, v, s, length);
    r.ops().causal_convolution_weight_gradient(r.stream(),
                                               {convolve, dconv, r[v.w_conv.gradient], {}, r.store(v.w_conv.gradient)});
    r.ops().causal_convolution_backward(r.stream(), {convolve, dconv, s.qkv(din)});
    v.enter_backward(r);
  };

  p.weight_gradient = v.weight_gradient();
  return v.y;
}

}  // namespace weft
