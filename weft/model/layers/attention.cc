// `*`: y = x + W_o attention(rope(norm(q)), rope(norm(k)), v),  [q | k | v] = W_qkv norm(x).
//
// T tokens, H hidden, hq query and hk key/value heads of d. In the packed matrix qkv [T, (hq + 2 hk) d] queries come
// first, then keys, then values (and behind them the output gate's logits, where there is one: the output is multiplied by
// their sigmoid before W_o). Without query/key norms it is turned in place; with them the raw one is kept beside.
// Sinks [hq] are one more logit a head, without a value.
#include <cmath>

#include "weft/device/operations.h"
#include "weft/model/layers/layers.h"

namespace weft {

namespace {

struct Values {
  ValueId x, y, xn, inverse, raw, qkv, q_inverse, k_inverse, context, lse;
  ValueId gated;  // context where there is no gate
  ValueId dqkv, dcontext, dxn, delta, dsinks;
  ParameterValues norm, w_qkv, b_qkv, w_out, b_out, q_norm, k_norm, sinks;
  RotaryTables rope;
};

struct Sizes {
  std::int64_t hq, hk, d, length;
  double scale, eps;
  bool zero_centred, repeatable;
  std::int64_t q_width() const { return hq * d; }
  std::int64_t k_width() const { return hk * d; }
  Tensor q(const Tensor& packed) const { return packed.slice_columns(0, q_width()); }
  Tensor k(const Tensor& packed) const { return packed.slice_columns(q_width(), k_width()); }
  Tensor v(const Tensor& packed) const { return packed.slice_columns(q_width() + k_width(), k_width()); }
  Tensor gate(const Tensor& packed) const { return packed.slice_columns(q_width() + 2 * k_width(), q_width()); }
};

void turn(const Run& r, const Values& v, const Sizes& s, const RopeSpec& rope, const Tensor& packed, bool inverse) {
  if (!rope.enabled) return;
  Rotary arguments;
  arguments.cosine = r[v.rope.cosine];
  arguments.sine = r[v.rope.sine];
  arguments.head_dim = s.d;
  arguments.width = v.rope.width;
  arguments.length = s.length;
  arguments.style = rope.style;
  arguments.inverse = inverse;
  arguments.x = arguments.y = packed.slice_columns(0, s.q_width() + s.k_width());  // queries and keys lie side by side
  arguments.heads = s.hq + s.hk;
  r.ops().rotary(r.stream(), arguments);
}

Attention attention_of(const Run& r, const Values& v, const Sizes& s, const AttentionSpec& spec) {
  const Tensor packed = r[v.qkv];
  Attention a;
  a.q = s.q(packed);
  a.k = s.k(packed);
  a.v = s.v(packed);
  a.out = r[v.context];
  a.lse = r[v.lse];
  a.length = s.length;
  a.heads = s.hq;
  a.kv_heads = s.hk;
  a.dim = a.value_dim = s.d;
  if (spec.sinks) a.sinks = r[v.sinks.value];
  a.window = spec.window;
  a.scale = s.scale;
  return a;
}

}  // namespace

ValueId add_attention(ModuleBuilder& b, const AttentionSpec& spec, ValueId x) {
  const std::int64_t T = b.tokens(), H = b.config().hidden;
  Sizes s{spec.heads,
          spec.kv_heads,
          spec.head_dim,
          b.options().length,
          spec.scale > 0 ? spec.scale : 1 / std::sqrt(static_cast<double>(spec.head_dim)),
          b.config().norm_epsilon,
          b.config().zero_centred_norms,
          b.options().repeatable_attention};
  const bool gate = spec.output_gate;
  const std::int64_t width = s.q_width() + 2 * s.k_width() + (gate ? s.q_width() : 0);
  const DType compute = b.compute(), acc = b.accumulate();

  Values v;
  v.x = x;
  v.norm = b.norm_weight("norm_weight", Role::norm, H);
  std::vector<ParameterPart> parts = {b.part(Role::q, {s.q_width(), H}, b.matrix_init()),
                                      b.part(Role::k, {s.k_width(), H}, b.matrix_init()),
                                      b.part(Role::v, {s.k_width(), H}, b.matrix_init())};
  if (gate) parts.push_back(b.part(Role::output_gate, {s.q_width(), H}, b.matrix_init()));
  v.w_qkv = b.parameter("qkv_weight", {width, H}, parts);
  const Init zero{Init::Kind::constant, 0};
  if (spec.qkv_bias)
    v.b_qkv = b.parameter("qkv_bias", {width},
                          {b.part(Role::q_bias, {s.q_width()}, zero), b.part(Role::k_bias, {s.k_width()}, zero),
                           b.part(Role::v_bias, {s.k_width()}, zero)});
  if (spec.qk_norm) {
    v.q_norm = b.norm_weight("q_norm_weight", Role::q_norm, s.d);
    v.k_norm = b.norm_weight("k_norm_weight", Role::k_norm, s.d);
  }
  v.w_out = b.parameter("output_weight", {H, s.q_width()}, {b.part(Role::output, {H, s.q_width()}, b.residual_init())});
  if (spec.output_bias) v.b_out = b.parameter("output_bias", {H}, {b.part(Role::output_bias, {H}, zero)});
  if (spec.sinks) v.sinks = b.parameter("sinks", {s.hq}, {b.part(Role::sinks, {s.hq}, zero)});
  if (spec.rope.enabled) v.rope = add_rotary_tables(b, spec.rope, s.d);

  v.xn = b.activation("xn", compute, {T, H});
  v.inverse = b.activation("inverse", acc, {T});
  v.qkv = b.activation("qkv", compute, {T, width});
  v.raw = spec.qk_norm ? b.activation("qkv_raw", compute, {T, width}) : v.qkv;
  if (spec.qk_norm) {
    v.q_inverse = b.activation("q_inverse", acc, {T * s.hq});
    v.k_inverse = b.activation("k_inverse", acc, {T * s.hk});
  }
  v.context = b.activation("context", compute, {T, s.q_width()});
  v.gated = gate ? b.activation("gated", compute, {T, s.q_width()}) : v.context;
  v.lse = b.activation("lse", acc, {s.hq, T});
  v.y = b.activation("y", compute, {T, H});
  v.dqkv = b.activation("d(qkv)", compute, {T, width});
  v.dcontext = b.scratch("d(context)", compute, {T, s.q_width()});
  v.dxn = b.scratch("d(xn)", compute, {T, H});
  v.delta = b.scratch("delta", acc, {s.hq, T});
  if (spec.sinks) v.dsinks = b.scratch("d(sinks)", acc, {s.hq});
  const ValueId dx = b.gradient_of(x), dy = b.gradient_of(v.y);

  Piece& p = b.piece("mix");
  const auto norm_of = [s](Tensor in, Tensor weight, Tensor out, Tensor inverse, std::int64_t heads) {
    return RmsNorm{in, weight, out, inverse, heads, s.eps, s.zero_centred};
  };
  PieceCode& f = p.forward;
  f.uses = {{x},
            {v.norm.value},
            {v.w_qkv.value},
            {v.w_out.value},
            {v.xn, Access::write},
            {v.inverse, Access::write},
            {v.qkv, Access::write},
            {v.context, Access::write},
            {v.lse, Access::write},
            {v.y, Access::write}};
  if (gate) f.uses.push_back({v.gated, Access::write});
  if (spec.qkv_bias) f.uses.push_back({v.b_qkv.value});
  if (spec.output_bias) f.uses.push_back({v.b_out.value});
  if (spec.sinks) f.uses.push_back({v.sinks.value});
  if (spec.qk_norm)
    for (const ValueUse& use : {ValueUse{v.q_norm.value}, ValueUse{v.k_norm.value}, ValueUse{v.raw, Access::write},
                                ValueUse{v.q_inverse, Access::write}, ValueUse{v.k_inverse, Access::write}})
      f.uses.push_back(use);
  if (spec.rope.enabled) f.uses.insert(f.uses.end(), {{v.rope.cosine}, {v.rope.sine}});
  f.run = [=](const Run& r) {
    r.ops().rms_norm(r.stream(), norm_of(r[v.x], r[v.norm.value], r[v.xn], r[v.inverse], 1));
    Matmul project{r[v.xn], r[v.w_qkv.value], r[v.raw], Transposed::no, Transposed::yes};
    if (spec.qkv_bias) project.bias = r[v.b_qkv.value];
    r.ops().matmul(r.stream(), project);
    const Tensor raw = r[v.raw], qkv = r[v.qkv];
    if (spec.qk_norm) {
      r.ops().rms_norm(r.stream(), norm_of(s.q(raw), r[v.q_norm.value], s.q(qkv), r[v.q_inverse], s.hq));
      r.ops().rms_norm(r.stream(), norm_of(s.k(raw), r[v.k_norm.value], s.k(qkv), r[v.k_inverse], s.hk));
      r.ops().cast(r.stream(), {s.v(raw), s.v(qkv)});
    }
    turn(r, v, s, spec.rope, qkv, false);
    r.ops().attention(r.stream(), attention_of(r, v, s, spec));
    if (gate) r.ops().sigmoid_gate(r.stream(), {r[v.context], s.gate(raw), r[v.gated]});
    Matmul out{r[v.gated], r[v.w_out.value], r[v.y], Transposed::no, Transposed::yes};
    out.residual = r[v.x];
    if (spec.output_bias) out.bias = r[v.b_out.value];
    r.ops().matmul(r.stream(), out);
  };

  PieceCode& g = p.backward;
  g.uses = {{dy},
            {x},
            {v.inverse},
            {v.norm.value},
            {v.w_qkv.value},
            {v.w_out.value},
            {v.qkv},
            {v.context},
            {v.lse},
            {v.dqkv, Access::write},
            {v.dcontext, Access::write},
            {v.dxn, Access::write},
            {v.delta, Access::write},
            {dx, Access::write},
            {v.norm.gradient, Access::add}};
  if (spec.rope.enabled) g.uses.insert(g.uses.end(), {{v.rope.cosine}, {v.rope.sine}});
  if (spec.sinks)
    g.uses.insert(g.uses.end(), {{v.sinks.value}, {v.dsinks, Access::write}, {v.sinks.gradient, Access::add}});
  if (spec.qk_norm)
    for (const ValueUse& use :
         {ValueUse{v.q_norm.value}, ValueUse{v.k_norm.value}, ValueUse{v.raw}, ValueUse{v.q_inverse},
          ValueUse{v.k_inverse}, ValueUse{v.q_norm.gradient, Access::add}, ValueUse{v.k_norm.gradient, Access::add}})
      g.uses.push_back(use);
  g.run = [=](const Run& r) {
    r.ops().matmul(r.stream(), {r[dy], r[v.w_out.value], r[v.dcontext]});
    const Tensor dqkv = r[v.dqkv];
    if (gate)
      r.ops().sigmoid_gate_backward(r.stream(),
                                    {r[v.context], s.gate(r[v.raw]), r[v.dcontext], r[v.dcontext], s.gate(dqkv)});
    AttentionBackward backward{attention_of(r, v, s, spec), r[v.dcontext], s.q(dqkv), s.k(dqkv), s.v(dqkv)};
    backward.scratch = r[v.delta];
    backward.repeatable = s.repeatable;
    if (spec.sinks) backward.dsinks = r[v.dsinks];
    r.ops().attention_backward(r.stream(), backward);
    if (spec.sinks)
      r.ops().column_sum(r.stream(), {r[v.dsinks].reshape({1, s.hq}), r[v.sinks.gradient], r.store(v.sinks.gradient)});
    turn(r, v, s, spec.rope, dqkv, true);
    if (spec.qk_norm) {
      const Tensor raw = r[v.raw];
      const auto back = [&](Tensor in, ParameterValues w, ValueId inverse, Tensor d, std::int64_t heads) {
        r.ops().rms_norm_backward(r.stream(), {in, r[w.value], r[inverse], d, d, Tensor{}, r[w.gradient], heads,
                                               s.zero_centred, r.store(w.gradient)});
      };
      back(s.q(raw), v.q_norm, v.q_inverse, s.q(dqkv), s.hq);
      back(s.k(raw), v.k_norm, v.k_inverse, s.k(dqkv), s.hk);
    }
    r.ops().matmul(r.stream(), {dqkv, r[v.w_qkv.value], r[v.dxn]});
    r.ops().rms_norm_backward(r.stream(), {r[x], r[v.norm.value], r[v.inverse], r[v.dxn], r[dx], r[dy],
                                           r[v.norm.gradient], 1, s.zero_centred, r.store(v.norm.gradient)});
  };

  PieceCode& w = p.weight_gradient;
  w.uses = {{dy}, {v.gated}, {v.dqkv}, {v.xn}, {v.w_out.gradient, Access::add}, {v.w_qkv.gradient, Access::add}};
  if (spec.qkv_bias) w.uses.push_back({v.b_qkv.gradient, Access::add});
  if (spec.output_bias) w.uses.push_back({v.b_out.gradient, Access::add});
  w.run = [=](const Run& r) {
    const auto store = [&](ParameterValues parameter) { return r.store(parameter.gradient); };
    r.ops().matmul(r.stream(),
                   {r[dy], r[v.gated], r[v.w_out.gradient], Transposed::yes, Transposed::no, store(v.w_out)});
    r.ops().matmul(r.stream(),
                   {r[v.dqkv], r[v.xn], r[v.w_qkv.gradient], Transposed::yes, Transposed::no, store(v.w_qkv)});
    if (spec.qkv_bias) r.ops().column_sum(r.stream(), {r[v.dqkv], r[v.b_qkv.gradient], store(v.b_qkv)});
    if (spec.output_bias) r.ops().column_sum(r.stream(), {r[dy], r[v.b_out.gradient], store(v.b_out)});
  };
  return v.y;
}

}  // namespace weft
