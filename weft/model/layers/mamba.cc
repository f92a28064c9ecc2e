// `M`: Mamba-2. [z | x | B | C | dt] = W_in norm(x); [x | B | C] through the convolution; the scan; then the gated norm
// of its output and z, and W_out of that on top of the residual stream.
//
// T tokens, H hidden, Di = heads * head_dim, N = groups * state. Backward keeps one state for every chunk and head; what
// is inside a chunk is computed again.
#include "weft/device/operations.h"
#include "weft/model/layers/layers.h"
#include "weft/model/layers/recurrent.h"

namespace weft {

namespace {

struct Values : Projections {
  ValueId conv, states, scanned, gate_inverse;
  ValueId dconv, dscanned, dstates, sums;
  ParameterValues w_conv, b_conv, A_log, dt_bias, D, gate_norm;
};

// Where the parts lie in [z | x | B | C | dt] and in [x | B | C].
struct Sizes {
  std::int64_t inner, states, heads;
  Tensor z(const Tensor& in) const { return in.slice_columns(0, inner); }
  Tensor xbc(const Tensor& in) const { return in.slice_columns(inner, inner + 2 * states); }
  Tensor dt(const Tensor& in) const { return in.slice_columns(2 * inner + 2 * states, heads); }
  Tensor x(const Tensor& conv) const { return conv.slice_columns(0, inner); }
  Tensor B(const Tensor& conv) const { return conv.slice_columns(inner, states); }
  Tensor C(const Tensor& conv) const { return conv.slice_columns(inner + states, states); }
};

CausalConvolution convolution(const Run& r, const Values& v, const Sizes& s, std::int64_t length, bool bias) {
  CausalConvolution op;
  op.x = s.xbc(r[v.in]);
  op.weight = r[v.w_conv.value];
  if (bias) op.bias = r[v.b_conv.value];
  op.length = length;
  return op;
}

StateScan scan(const Run& r, const Values& v, const Sizes& s, const MambaSpec& spec, std::int64_t length) {
  StateScan op;
  op.x = s.x(r[v.conv]);
  op.B = s.B(r[v.conv]);
  op.C = s.C(r[v.conv]);
  op.dt = s.dt(r[v.in]);
  op.A_log = r[v.A_log.value];
  op.dt_bias = r[v.dt_bias.value];
  op.D = r[v.D.value];
  op.states = r[v.states];
  op.length = length;
  op.chunk = spec.chunk;
  op.heads = spec.heads;
  op.groups = spec.groups;
  op.dim = spec.head_dim;
  op.state = spec.state;
  op.dt_least = spec.step_least;
  op.dt_most = spec.step_most;
  return op;
}

Values declare(ModuleBuilder& b, const MambaSpec& spec, ValueId x) {
  const std::int64_t T = b.tokens(), H = b.config().hidden, Di = spec.width(), N = spec.groups * spec.state;
  const std::int64_t channels = spec.channels(), width = Di + channels + spec.heads;
  const std::int64_t chunks = chunks_of(T, b.options().length, spec.chunk);
  const DType compute = b.compute(), acc = b.accumulate();
  const Init taps = convolution_init(spec.taps);
  Values v;
  v.x = x;
  v.norm = b.norm_weight("norm_weight", Role::norm, H);
  v.w_in = b.parameter("input_weight", {width, H},
                       {b.part(Role::z, {Di, H}, b.matrix_init()), b.part(Role::x, {Di, H}, b.matrix_init()),
                        b.part(Role::B, {N, H}, b.matrix_init()), b.part(Role::C, {N, H}, b.matrix_init()),
                        b.part(Role::dt, {spec.heads, H}, b.matrix_init())});
  v.w_conv = b.parameter("conv_weight", {channels, spec.taps},
                         {b.part(Role::conv_x, {Di, spec.taps}, taps), b.part(Role::conv_B, {N, spec.taps}, taps),
                          b.part(Role::conv_C, {N, spec.taps}, taps)});
  b.keep_gradient_precise(v.w_conv);
  if (spec.conv_bias)
    v.b_conv = b.parameter("conv_bias", {channels},
                           {b.part(Role::conv_x_bias, {Di}, taps), b.part(Role::conv_B_bias, {N}, taps),
                            b.part(Role::conv_C_bias, {N}, taps)});
  const Shape heads{spec.heads};
  v.A_log = b.precise_parameter("A_log", heads, {b.part(Role::A_log, heads, {Init::Kind::log_uniform, 1, 16})});
  v.dt_bias = b.precise_parameter("dt_bias", heads, {b.part(Role::dt_bias, heads, {Init::Kind::step_bias, 1e-3, 0.1})});
  v.D = b.precise_parameter("D", heads, {b.part(Role::D, heads, {Init::Kind::constant, 1})});
  // Never zero-centred: no model has it so.
  v.gate_norm = b.parameter("gate_norm_weight", {Di}, {b.part(Role::mixer_norm, {Di}, {Init::Kind::constant, 1})});
  v.w_out = b.parameter("output_weight", {H, Di}, {b.part(Role::output, {H, Di}, b.residual_init())});

  v.xn = b.activation("xn", compute, {T, H});
  v.inverse = b.activation("inverse", acc, {T});
  v.in = b.activation("in", compute, {T, width});
  v.conv = b.activation("conv", compute, {T, channels});
  v.states = b.activation("states", acc, {chunks, spec.heads * spec.head_dim * spec.state});
  v.scanned = b.activation("scanned", compute, {T, Di});
  v.gate_inverse = b.activation("gate_inverse", acc, {T * (spec.norm_by_group ? spec.groups : 1)});
  v.gated = b.activation("gated", compute, {T, Di});
  v.y = b.activation("y", compute, {T, H});
  v.din = b.activation("d(in)", compute, {T, width});
  v.dgated = b.scratch("d(gated)", compute, {T, Di});
  v.dscanned = b.scratch("d(scanned)", compute, {T, Di});
  v.dconv = b.scratch("d(conv)", compute, {T, channels});
  v.dstates = b.scratch("d(states)", acc, {chunks, spec.heads * spec.head_dim * spec.state});
  v.sums = b.scratch("sums", acc, {chunks, 3 * spec.heads});
  v.dxn = b.scratch("d(xn)", compute, {T, H});
  v.dx = b.gradient_of(x);
  v.dy = b.gradient_of(v.y);
  v.eps = b.config().norm_epsilon;
  v.zero_centred = b.config().zero_centred_norms;
  return v;
}

}  // namespace

ValueId add_mamba(ModuleBuilder& b, const MambaSpec& spec, ValueId x) {
  const std::int64_t length = b.options().length, parts = spec.norm_by_group ? spec.groups : 1;
  const Sizes s{spec.width(), spec.groups * spec.state, spec.heads};
  const Values v = declare(b, spec, x);
  const auto gate = [=](const Run& r) {
    return GatedNorm{r[v.scanned], s.z(r[v.in]), r[v.gate_norm.value], {}, r[v.gate_inverse], parts, v.eps, true};
  };

  Piece& p = b.piece("mix");
  PieceCode& f = p.forward;
  for (ValueId in : {x, v.norm.value, v.w_in.value, v.w_conv.value, v.A_log.value, v.dt_bias.value, v.D.value,
                     v.gate_norm.value, v.w_out.value})
    f.uses.push_back({in});
  for (ValueId out : {v.xn, v.inverse, v.in, v.conv, v.states, v.scanned, v.gate_inverse, v.gated, v.y})
    f.uses.push_back({out, Access::write});
  if (spec.conv_bias) f.uses.push_back({v.b_conv.value});
  f.run = [=](const Run& r) {
    v.enter(r);
    CausalConvolution convolve = convolution(r, v, s, length, spec.conv_bias);
    convolve.y = r[v.conv];
    r.ops().causal_convolution(r.stream(), convolve);
    StateScan go = scan(r, v, s, spec, length);
    go.y = r[v.scanned];
    r.ops().state_scan(r.stream(), go);
    GatedNorm norm = gate(r);
    norm.y = r[v.gated];
    r.ops().gated_norm(r.stream(), norm);
    v.leave(r);
  };

  PieceCode& g = p.backward;
  for (ValueId in : {v.dy, x, v.inverse, v.in, v.conv, v.states, v.scanned, v.gate_inverse, v.norm.value, v.w_in.value,
                     v.w_conv.value, v.A_log.value, v.dt_bias.value, v.D.value, v.gate_norm.value, v.w_out.value})
    g.uses.push_back({in});
  for (ValueId out : {v.din, v.dgated, v.dscanned, v.dconv, v.dstates, v.sums, v.dxn, v.dx})
    g.uses.push_back({out, Access::write});
  for (ParameterValues w : {v.norm, v.w_conv, v.A_log, v.dt_bias, v.D, v.gate_norm})
    g.uses.push_back({w.gradient, Access::add});
  if (spec.conv_bias) g.uses.insert(g.uses.end(), {{v.b_conv.value}, {v.b_conv.gradient, Access::add}});
  g.run = [=](const Run& r) {
    const Tensor din = r[v.din], dconv = r[v.dconv];
    v.leave_backward(r);
    r.ops().gated_norm_backward(r.stream(), {gate(r), r[v.dgated], r[v.dscanned], s.z(din), r[v.gate_norm.gradient],
                                             r.store(v.gate_norm.gradient)});
    StateScanBackward back{scan(r, v, s, spec, length), r[v.dscanned], s.x(dconv), s.B(dconv), s.C(dconv), s.dt(din)};
    back.dA_log = r[v.A_log.gradient];
    back.ddt_bias = r[v.dt_bias.gradient];
    back.dD = r[v.D.gradient];
    back.dstates = r[v.dstates];
    back.sums = r[v.sums];
    back.store = r.store(v.A_log.gradient);
    r.ops().state_scan_backward(r.stream(), back);
    const CausalConvolution convolve = convolution(r, v, s, length, spec.conv_bias);
    r.ops().causal_convolution_weight_gradient(
        r.stream(), {convolve, dconv, r[v.w_conv.gradient], spec.conv_bias ? r[v.b_conv.gradient] : Tensor{},
                     r.store(v.w_conv.gradient)});
    r.ops().causal_convolution_backward(r.stream(), {convolve, dconv, s.xbc(din)});
    v.enter_backward(r);
  };

  p.weight_gradient = v.weight_gradient();
  return v.y;
}

}  // namespace weft
