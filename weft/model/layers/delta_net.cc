// `G`: gated delta net. [q | k | v | z | beta | alpha] = W_in norm(x); [q | k | v] go through the convolution; heads of
// q and k are scaled to unit length (q times key_dim^-1/2); then the gated delta rule. The norm of every value head
// times silu(z) goes through W_out and is added to the residual stream.
//
// T tokens, H hidden, Dk = key_heads * key_dim, Dv = heads * head_dim. One state per chunk and head is kept for
// backward.
#include <cmath>

#include "weft/device/operations.h"
#include "weft/model/layers/convolution.h"
#include "weft/model/layers/layers.h"
#include "weft/model/layers/residual_block.h"
#include "weft/model/layers/uses.h"

namespace weft {

namespace {

struct DeltaNet : ResidualBlock {
  DeltaNetSpec spec;
  std::int64_t length = 0;
  ValueId conv, unit, states, read, head_inverse;
  ValueId dconv, dread, sums;
  Convolution w_conv;
  ParameterValues A_log, dt_bias, head_norm;

  std::int64_t keys() const { return spec.key_width(); }
  std::int64_t values() const { return spec.width(); }
  std::int64_t in_width() const { return spec.channels() + values() + 2 * spec.heads; }
  // Parts of [q | k | v | z | beta | alpha], of [q | k | v] and of [q | k].
  Tensor qkv(const Tensor& all) const { return all.slice_columns(0, 2 * keys() + values()); }
  Tensor z(const Tensor& all) const { return all.slice_columns(2 * keys() + values(), values()); }
  Tensor beta(const Tensor& all) const { return all.slice_columns(2 * (keys() + values()), spec.heads); }
  Tensor alpha(const Tensor& all) const { return all.slice_columns(2 * (keys() + values()) + spec.heads, spec.heads); }
  Tensor q(const Tensor& qkv) const { return qkv.slice_columns(0, keys()); }
  Tensor k(const Tensor& qkv) const { return qkv.slice_columns(keys(), keys()); }
  Tensor v(const Tensor& qkv) const { return qkv.slice_columns(2 * keys(), values()); }
};

void add_parameters(ModuleBuilder& b, DeltaNet& v) {
  const DeltaNetSpec& spec = v.spec;
  const std::int64_t H = b.config().hidden, Dk = v.keys(), Dv = v.values();
  const Init taps = convolution_init(spec.taps);
  const auto rows = [&](Role role, std::int64_t count) { return b.part(role, {count, H}, b.matrix_init()); };
  v.w_in = {b.parameter("input_weight", {v.in_width(), H},
                        {rows(Role::q, Dk), rows(Role::k, Dk), rows(Role::v, Dv), rows(Role::z, Dv),
                         rows(Role::beta, spec.heads), rows(Role::alpha, spec.heads)})};
  v.w_conv = {b.parameter("conv_weight", {spec.channels(), spec.taps},
                          {b.part(Role::conv_q, {Dk, spec.taps}, taps), b.part(Role::conv_k, {Dk, spec.taps}, taps),
                           b.part(Role::conv_v, {Dv, spec.taps}, taps)})};
  v.w_conv.length = v.length;
  v.w_conv.boundaries = b.module().boundaries;
  b.keep_gradient_precise(v.w_conv);
  const Shape heads{spec.heads};
  v.A_log = b.precise_parameter("A_log", heads, {b.part(Role::A_log, heads, {Init::Kind::log_uniform, 1, 16})});
  v.dt_bias = b.precise_parameter("dt_bias", heads, {b.part(Role::dt_bias, heads, {Init::Kind::constant, 1})});
  // Never zero-centred, even where the other norms are.
  v.head_norm = b.parameter("head_norm_weight", {spec.head_dim},
                            {b.part(Role::mixer_norm, {spec.head_dim}, {Init::Kind::constant, 1})});
  v.w_out = {b.parameter("output_weight", {H, Dv}, {b.part(Role::output, {H, Dv}, b.residual_init())})};
}

void add_values(ModuleBuilder& b, DeltaNet& v) {
  const DeltaNetSpec& spec = v.spec;
  const std::int64_t T = b.tokens(), H = b.config().hidden, Dk = v.keys(), Dv = v.values();
  const std::int64_t chunks = chunks_of(T, v.length, spec.chunk);
  const DType compute = b.compute(), acc = b.accumulate();
  v.add_norm_values(b);
  v.in = b.activation("in", compute, {T, v.in_width()});
  v.conv = b.activation("conv", compute, {T, spec.channels()});
  v.unit = b.activation("unit", compute, {T, 2 * Dk});
  v.states = b.activation("states", acc, {chunks, spec.heads * spec.key_dim * spec.head_dim});
  v.read = b.activation("read", compute, {T, Dv});
  v.head_inverse = b.activation("head_inverse", acc, {T * spec.heads});
  v.mixed = b.activation("gated", compute, {T, Dv});
  v.y = b.activation("y", compute, {T, H});
  v.din = b.activation("d(in)", compute, {T, v.in_width()});
  v.dmixed = b.scratch("d(gated)", compute, {T, Dv});
  v.dread = b.scratch("d(read)", compute, {T, Dv});
  v.dconv = b.scratch("d(conv)", compute, {T, spec.channels()});
  v.sums = b.scratch("sums", acc, {chunks, 2 * spec.heads});
  v.dxn = b.scratch("d(xn)", compute, {T, H});
  v.add_gradients(b);
}

// The norm of the queries, or of the keys.
L2Norm unit_length(const Run& r, const DeltaNet& v, bool queries) {
  L2Norm op;
  op.x = queries ? v.q(r[v.conv]) : v.k(r[v.conv]);
  op.groups = v.spec.key_heads;
  if (queries) op.scale = 1 / std::sqrt(static_cast<double>(v.spec.key_dim));
  return op;
}

DeltaRule rule_of(const Run& r, const DeltaNet& v) {
  DeltaRule op;
  op.q = v.q(r[v.unit]);
  op.k = v.k(r[v.unit]);
  op.v = v.v(r[v.conv]);
  op.a = v.alpha(r[v.in]);
  op.b = v.beta(r[v.in]);
  op.A_log = r[v.A_log.value];
  op.dt_bias = r[v.dt_bias.value];
  op.states = r[v.states];
  op.boundaries = given(r, v.w_conv.boundaries);
  op.length = v.length;
  op.chunk = v.spec.chunk;
  op.heads = v.spec.heads;
  op.key_heads = v.spec.key_heads;
  op.dim = v.spec.key_dim;
  op.value_dim = v.spec.head_dim;
  return op;
}

GatedNorm gate_of(const Run& r, const DeltaNet& v) {
  return {r[v.read], v.z(r[v.in]), r[v.head_norm.value], {}, r[v.head_inverse], v.spec.heads, v.norm.epsilon, false};
}

void run_rule(const Run& r, const DeltaNet& v) {
  v.w_conv.forward(r, v.qkv(r[v.in]), r[v.conv]);
  for (const bool queries : {true, false}) {
    L2Norm norm = unit_length(r, v, queries);
    norm.y = queries ? v.q(r[v.unit]) : v.k(r[v.unit]);
    r.ops().l2_norm(r.stream(), norm);
  }
  DeltaRule rule = rule_of(r, v);
  rule.y = r[v.read];
  r.ops().delta_rule(r.stream(), rule);
}

void run_gate(const Run& r, const DeltaNet& v) {
  GatedNorm gate = gate_of(r, v);
  gate.y = r[v.mixed];
  r.ops().gated_norm(r.stream(), gate);
}

void run_backward(const Run& r, const DeltaNet& v) {
  const Tensor din = r[v.din], dconv = r[v.dconv];
  r.ops().gated_norm_backward(r.stream(), {gate_of(r, v), r[v.dmixed], r[v.dread], v.z(din), r[v.head_norm.gradient],
                                           r.store(v.head_norm.gradient)});
  DeltaRuleBackward rule{rule_of(r, v), r[v.dread], v.q(dconv), v.k(dconv), v.v(dconv), v.alpha(din), v.beta(din)};
  rule.dA_log = r[v.A_log.gradient];
  rule.ddt_bias = r[v.dt_bias.gradient];
  rule.sums = r[v.sums];
  rule.store = r.store(v.A_log.gradient);
  r.ops().delta_rule_backward(r.stream(), rule);
  for (const bool queries : {true, false}) {
    const Tensor d = queries ? v.q(dconv) : v.k(dconv);
    r.ops().l2_norm_backward(r.stream(), {unit_length(r, v, queries), d, d});
  }
  v.w_conv.backward(r, v.qkv(r[v.in]), dconv, v.qkv(din));
}

PieceCode forward(const DeltaNet& v) {
  PieceCode f;
  reads(f, {v.x, v.norm.value, v.w_in.value, v.w_conv.value, v.w_conv.boundaries, v.A_log.value, v.dt_bias.value,
            v.head_norm.value, v.w_out.value});
  writes(f, {v.xn, v.inverse, v.in, v.conv, v.unit, v.states, v.read, v.head_inverse, v.mixed, v.y});
  f.run = [v](const Run& r) {
    run_rule(r, v);
    run_gate(r, v);
  };
  return f;
}

std::vector<PiecePart> parts(const DeltaNet& v) {
  PiecePart rule{"rule"}, gate{"norm_out", set_of({RecomputeModule::gdn_norm_out})};
  reads(rule.code, {v.w_conv.value, v.w_conv.boundaries, v.A_log.value, v.dt_bias.value});
  writes(rule.code, {v.in, v.conv, v.unit, v.states, v.read});
  rule.code.run = [v](const Run& r) { run_rule(r, v); };
  reads(gate.code, {v.read, v.in, v.head_norm.value});
  writes(gate.code, {v.head_inverse, v.mixed});
  gate.code.run = [v](const Run& r) { run_gate(r, v); };
  return {std::move(rule), std::move(gate)};
}

PieceCode backward(const DeltaNet& v) {
  PieceCode g;
  reads(g, {v.dy, v.x, v.inverse, v.in, v.conv, v.unit, v.states, v.read, v.head_inverse, v.norm.value, v.w_in.value,
            v.w_conv.value, v.w_conv.boundaries, v.A_log.value, v.dt_bias.value, v.head_norm.value, v.w_out.value});
  writes(g, {v.din, v.dmixed, v.dread, v.dconv, v.sums, v.dxn, v.dx});
  adds_to(g, {v.norm.gradient, v.w_conv.gradient, v.A_log.gradient, v.dt_bias.gradient, v.head_norm.gradient});
  g.run = [v](const Run& r) { run_backward(r, v); };
  return g;
}

}  // namespace

ValueId add_delta_net(ModuleBuilder& b, const DeltaNetSpec& spec, ValueId x) {
  DeltaNet v;
  v.spec = spec;
  v.length = b.options().length;
  v.add_norm_weight(b, x);
  add_parameters(b, v);
  add_values(b, v);
  return v.add_piece(b, forward(v), backward(v), v.weight_gradient(), parts(v));
}

}  // namespace weft
