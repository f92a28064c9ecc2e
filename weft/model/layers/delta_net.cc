// `G`: gated delta net. [q | k | v | z | beta | alpha] = W_in norm(x); [q | k | v] go through the convolution; heads of
// q and k are scaled to unit length (q times key_dim^-1/2); then the gated delta rule. The norm of every value head
// times silu(z) goes through W_out and is added to the residual stream.
//
// T tokens, H hidden, Dk = key_heads * key_dim, Dv = heads * head_dim. One state per chunk and head is kept for
// backward. Tensor ranks divide the heads: those of this rank. Ranks that outnumber the key heads share them, and have
// [z | beta | alpha | v | q | k] instead.
#include <algorithm>
#include <cmath>

#include "weft/device/operations.h"
#include "weft/model/layers/convolution.h"
#include "weft/model/layers/layers.h"
#include "weft/model/layers/residual_block.h"
#include "weft/model/layers/uses.h"

namespace weft {

namespace {

struct DeltaNet : ResidualBlock {
  DeltaNetSpec spec;  // of this rank's heads
  bool shares_keys = false;
  std::int64_t length = 0;
  ValueId conv, unit, states, read, head_inverse;
  ValueId dconv, dread, sums;
  Convolution w_conv;
  ParameterValues A_log, dt_bias, head_norm;

  std::int64_t keys() const { return spec.key_width(); }
  std::int64_t values() const { return spec.width(); }
  std::int64_t in_width() const { return spec.channels() + values() + 2 * spec.heads; }
  // Parts of [q | k | v | z | beta | alpha], of [q | k | v] and of [q | k].
  std::int64_t z_column() const { return shares_keys ? 0 : 2 * keys() + values(); }
  std::int64_t qkv_column() const { return shares_keys ? values() + 2 * spec.heads : 0; }
  std::int64_t q_column() const { return shares_keys ? values() : 0; }  // of qkv
  Tensor qkv(const Tensor& all) const { return all.slice_columns(qkv_column(), 2 * keys() + values()); }
  Tensor z(const Tensor& all) const { return all.slice_columns(z_column(), values()); }
  Tensor beta(const Tensor& all) const { return all.slice_columns(z_column() + values(), spec.heads); }
  Tensor alpha(const Tensor& all) const { return all.slice_columns(z_column() + values() + spec.heads, spec.heads); }
  Tensor q(const Tensor& qkv) const { return qkv.slice_columns(q_column(), keys()); }
  Tensor k(const Tensor& qkv) const { return qkv.slice_columns(q_column() + keys(), keys()); }
  Tensor v(const Tensor& qkv) const { return qkv.slice_columns(shares_keys ? 0 : 2 * keys(), values()); }
  Tensor unit_q(const Tensor& both) const { return both.slice_columns(0, keys()); }
  Tensor unit_k(const Tensor& both) const { return both.slice_columns(keys(), keys()); }
};

// The heads of q and k, of which this rank uses one.
void add_shared_keys(ModuleBuilder& b, const DeltaNetSpec& all, DeltaNet& v) {
  const std::int64_t H = b.config().hidden, Dk = all.key_width(), here = v.keys();
  const std::int64_t first = b.tensor_ranks().rank * all.key_heads / b.tensor_ranks().size * all.key_dim;
  const Init taps = convolution_init(all.taps);
  v.own_columns = v.qkv_column() + v.values();
  const std::int64_t column = v.own_columns;
  v.shared_inputs.push_back(
      {{b.parameter("qk_weight", {2 * Dk, H},
                    {b.part(Role::q, {Dk, H}, b.matrix_init()), b.part(Role::k, {Dk, H}, b.matrix_init())})},
       {{first, here, column}, {Dk + first, here, column + here}}});
  v.w_conv.own = v.values();
  v.w_conv.shared_weight =
      b.parameter("qk_conv_weight", {2 * Dk, all.taps},
                  {b.part(Role::conv_q, {Dk, all.taps}, taps), b.part(Role::conv_k, {Dk, all.taps}, taps)});
  v.w_conv.shared = {{first, here, v.values()}, {Dk + first, here, v.values() + here}};
  b.keep_gradient_precise(v.w_conv.shared_weight);
}

void add_parameters(ModuleBuilder& b, const DeltaNetSpec& all, DeltaNet& v) {
  const DeltaNetSpec& spec = v.spec;
  const std::int64_t H = b.config().hidden, Dk = all.key_width(), Dv = all.width();
  const Init taps = convolution_init(spec.taps);
  const auto part = [&](Role role, const Shape& shape, Init init) { return b.tensor_part(role, shape, 0, init); };
  const auto rows = [&](Role role, std::int64_t count) { return part(role, {count, H}, b.matrix_init()); };
  if (v.shares_keys) {
    v.w_in = {
        b.parameter("input_weight", {v.qkv_column() + v.values(), H},
                    {rows(Role::z, Dv), rows(Role::beta, all.heads), rows(Role::alpha, all.heads), rows(Role::v, Dv)})};
    v.w_conv = {b.parameter("conv_weight", {v.values(), spec.taps}, {part(Role::conv_v, {Dv, spec.taps}, taps)})};
    add_shared_keys(b, all, v);
  } else {
    v.w_in = {b.parameter("input_weight", {v.in_width(), H},
                          {rows(Role::q, Dk), rows(Role::k, Dk), rows(Role::v, Dv), rows(Role::z, Dv),
                           rows(Role::beta, all.heads), rows(Role::alpha, all.heads)})};
    v.w_conv = {b.parameter("conv_weight", {spec.channels(), spec.taps},
                            {part(Role::conv_q, {Dk, spec.taps}, taps), part(Role::conv_k, {Dk, spec.taps}, taps),
                             part(Role::conv_v, {Dv, spec.taps}, taps)})};
  }
  v.w_conv.length = v.length;
  v.w_conv.boundaries = b.module().boundaries;
  b.keep_gradient_precise(v.w_conv);
  const Shape heads{all.heads}, here{spec.heads};
  v.A_log = b.precise_parameter("A_log", here, {part(Role::A_log, heads, {Init::Kind::log_uniform, 1, 16})});
  v.dt_bias = b.precise_parameter("dt_bias", here, {part(Role::dt_bias, heads, {Init::Kind::constant, 1})});
  // Never zero-centred, even where the other norms are.
  v.head_norm = b.parameter("head_norm_weight", {spec.head_dim},
                            {b.part(Role::mixer_norm, {spec.head_dim}, {Init::Kind::constant, 1})});
  v.w_out = {
      b.parameter("output_weight", {H, v.values()}, {b.tensor_part(Role::output, {H, Dv}, 1, b.residual_init())})};
}

// The body's heads are those of this context rank.
void divide_heads(ModuleBuilder& b, DeltaNet& v) {
  DeltaNetSpec& spec = v.spec;
  const std::int64_t Dk = v.keys(), Dv = v.values(), heads = spec.heads, keys = spec.key_heads;
  const auto of = [](std::int64_t count, std::int64_t parts) { return std::pair{count, parts}; };
  const std::vector<HeadSection> each = sections_of({of(heads, heads)});
  v.exchange_heads(
      b, TokenRanks::all(b.options().layout, b.options().batch, b.options().length),
      v.shares_keys
          ? sections_of({of(Dv, heads), of(heads, heads), of(heads, heads), of(Dv, heads), of(Dk, keys), of(Dk, keys)})
          : sections_of({of(Dk, keys), of(Dk, keys), of(Dv, heads), of(Dv, heads), of(heads, heads), of(heads, heads)}),
      sections_of({of(Dv, heads)}));
  const auto rows = [&](ParameterValues& whole, const std::vector<HeadSection>& sections) {
    whole = v.rows_of_heads(b, whole, sections);
  };
  rows(v.w_conv,
       v.shares_keys ? sections_of({of(Dv, heads)}) : sections_of({of(Dk, keys), of(Dk, keys), of(Dv, heads)}));
  for (ParameterValues* of_heads : {&v.A_log, &v.dt_bias}) rows(*of_heads, each);
  const std::int64_t ranks = b.context_ranks().size;
  spec.heads /= ranks;
  spec.key_heads = std::max<std::int64_t>(spec.key_heads / ranks, 1);
  if (!v.shares_keys) return;
  // The convolution of q and k, whose heads all ranks have: they come after this rank's values.
  v.w_conv.own = v.values();
  v.w_conv.shared[0].column = v.values();
  v.w_conv.shared[1].column = v.values() + v.keys();
}

void add_values(ModuleBuilder& b, DeltaNet& v) {
  const DeltaNetSpec& spec = v.spec;
  const std::int64_t T = v.body_tokens(b), H = b.config().hidden, Dk = v.keys(), Dv = v.values();
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
  v.y = b.activation("y", compute, {b.stream_tokens(), H});
  v.din = b.activation("d(in)", compute, {T, v.in_width()});
  v.dmixed = b.scratch("d(gated)", compute, {T, Dv});
  v.dread = b.scratch("d(read)", compute, {T, Dv});
  v.dconv = b.scratch("d(conv)", compute, {T, spec.channels()});
  v.sums = b.scratch("sums", acc, {chunks, 2 * spec.heads});
  v.dxn = v.input_gradient(b);
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
  op.q = v.unit_q(r[v.unit]);
  op.k = v.unit_k(r[v.unit]);
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
    norm.y = queries ? v.unit_q(r[v.unit]) : v.unit_k(r[v.unit]);
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
  if (v.w_conv.shares()) reads(f, {v.w_conv.shared_weight.value});
  f.run = [v](const Run& r) {
    run_rule(r, v);
    run_gate(r, v);
  };
  return f;
}

std::vector<PiecePart> parts(const DeltaNet& v) {
  PiecePart rule{"rule"}, gate{"norm_out", set_of({RecomputeModule::gdn_norm_out})};
  reads(rule.code, {v.w_conv.value, v.w_conv.boundaries, v.A_log.value, v.dt_bias.value});
  if (v.w_conv.shares()) reads(rule.code, {v.w_conv.shared_weight.value});
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
  if (v.w_conv.shares()) {
    reads(g, {v.w_conv.shared_weight.value});
    adds_to(g, {v.w_conv.shared_weight.gradient});
  }
  g.run = [v](const Run& r) { run_backward(r, v); };
  return g;
}

}  // namespace

ValueId add_delta_net(ModuleBuilder& b, const DeltaNetSpec& spec, ValueId x) {
  DeltaNet v;
  v.spec = spec;
  v.spec.heads = b.tensor_ranks().share(spec.heads);
  v.spec.key_heads = b.tensor_ranks().share(spec.key_heads);
  v.shares_keys = spec.key_heads % b.tensor_ranks().size != 0;
  v.length = b.options().length;
  v.add_norm_weight(b, x);
  add_parameters(b, spec, v);
  if (b.context_ranks().divide()) divide_heads(b, v);
  add_values(b, v);
  return v.add_piece(b, forward(v), backward(v), v.weight_gradient(), parts(v));
}

}  // namespace weft
