// `*`: y = x + W_o attention(rope(norm(q)), rope(norm(k)), v),  [q | k | v] = W_qkv norm(x).
//
// T tokens, H hidden, hq query and hk key/value heads of d. The packed matrix qkv [T, (hq + 2 hk) d] holds queries,
// then keys, then values. With an output gate its logits follow, [T, hq d]; attention's output is multiplied by their
// sigmoid before W_o. Without query/key norms qkv is rotated in place; with them the raw product is kept as well.
// Sinks [hq] are one more logit per head, without a value.
//
// Tensor ranks divide the heads: hq and hk are those of this rank. Ranks that outnumber the key/value heads share them.
#include <algorithm>
#include <cmath>

#include "weft/device/operations.h"
#include "weft/model/layers/block_attention.h"
#include "weft/model/layers/layers.h"
#include "weft/model/layers/residual_block.h"
#include "weft/model/layers/rotary.h"
#include "weft/model/layers/uses.h"

namespace weft {

namespace {

struct SelfAttention : ResidualBlock {  // in: the raw product; without query/key norms, qkv itself
  BlockAttention blocks;                // of context ranks that send each other keys
  ValueId dgate;                        // there, of the gate's logits
  AttentionSpec spec;
  std::int64_t hq = 0, hk = 0, d = 0, length = 0;
  double scale = 0;
  bool repeatable = true;

  ValueId boundaries;
  ValueId qkv, q_inverse, k_inverse, context, lse;  // mixed: the gated context, or context itself
  ValueId delta, dsinks;
  Norm q_norm, k_norm;
  ParameterValues sinks;
  RotaryTables rope;

  bool shares_keys() const { return spec.kv_heads % tensor_ranks().size != 0; }
  std::int64_t q_width() const { return hq * d; }
  std::int64_t k_width() const { return hk * d; }
  std::int64_t width() const { return q_width() + 2 * k_width() + (spec.output_gate ? q_width() : 0); }
  // Where keys are shared, the columns of the divided weight come first: the gate's, then the queries'.
  std::int64_t q_column() const { return shares_keys() && spec.output_gate ? q_width() : 0; }
  std::int64_t k_column() const { return q_column() + q_width(); }
  std::int64_t gate_column() const { return shares_keys() ? 0 : q_width() + 2 * k_width(); }
  Tensor q(const Tensor& packed) const { return packed.slice_columns(q_column(), q_width()); }
  Tensor k(const Tensor& packed) const { return packed.slice_columns(k_column(), k_width()); }
  Tensor v(const Tensor& packed) const { return packed.slice_columns(k_column() + k_width(), k_width()); }
  Tensor gate(const Tensor& packed) const { return packed.slice_columns(gate_column(), q_width()); }
};

SelfAttention described(const ModuleBuilder& b, const AttentionSpec& spec) {
  SelfAttention v;
  v.spec = spec;
  v.hq = b.tensor_ranks().share(spec.heads);
  v.hk = b.tensor_ranks().share(spec.kv_heads);
  v.d = spec.head_dim;
  v.length = b.options().length;
  v.scale = spec.scale > 0 ? spec.scale : 1 / std::sqrt(static_cast<double>(spec.head_dim));
  v.repeatable = b.options().repeatable_attention;
  return v;
}

// Tensor ranks that outnumber the key/value heads share them: all hold all of them, and each uses one.
void add_shared_keys(ModuleBuilder& b, SelfAttention& v) {
  const std::int64_t H = b.config().hidden, all = v.spec.kv_heads * v.d;
  const std::int64_t head = b.tensor_ranks().rank * v.spec.kv_heads / b.tensor_ranks().size;
  SharedInput s;
  s.w = {b.parameter("kv_weight", {2 * all, H},
                     {b.part(Role::k, {all, H}, b.matrix_init()), b.part(Role::v, {all, H}, b.matrix_init())})};
  if (v.spec.qkv_bias) {
    const Init zero{Init::Kind::constant, 0};
    s.w.bias =
        b.parameter("kv_bias", {2 * all}, {b.part(Role::k_bias, {all}, zero), b.part(Role::v_bias, {all}, zero)});
  }
  s.used = {{head * v.d, v.d, v.k_column()}, {all + head * v.d, v.d, v.k_column() + v.d}};
  v.own_columns = v.k_column();
  v.shared_inputs.push_back(std::move(s));
}

void add_parameters(ModuleBuilder& b, SelfAttention& v) {
  const std::int64_t H = b.config().hidden, wide = v.spec.heads * v.d, narrow = v.spec.kv_heads * v.d;
  const Init zero{Init::Kind::constant, 0};
  const bool shares = v.shares_keys();
  const auto rows = [&](Role role, std::int64_t count) { return b.tensor_part(role, {count, H}, 0, b.matrix_init()); };
  const auto bias = [&](Role role, std::int64_t count) { return b.tensor_part(role, {count}, 0, zero); };
  std::vector<ParameterPart> parts = {rows(Role::q, wide)}, biases = {bias(Role::q_bias, wide)};
  if (!shares) {
    parts.insert(parts.end(), {rows(Role::k, narrow), rows(Role::v, narrow)});
    biases.insert(biases.end(), {bias(Role::k_bias, narrow), bias(Role::v_bias, narrow)});
  }
  if (v.spec.output_gate) parts.insert(shares ? parts.begin() : parts.end(), rows(Role::output_gate, wide));
  const std::int64_t own = shares ? v.k_column() : v.width();
  v.w_in = {b.parameter("qkv_weight", {own, H}, parts)};
  if (v.spec.qkv_bias) v.w_in.bias = b.parameter("qkv_bias", {own}, biases);
  if (shares) add_shared_keys(b, v);
  if (v.spec.qk_norm) {
    v.q_norm = add_norm(b, "q_norm_weight", Role::q_norm, v.d);
    v.k_norm = add_norm(b, "k_norm_weight", Role::k_norm, v.d);
    v.q_norm.groups = v.hq;
    v.k_norm.groups = v.hk;
  }
  v.w_out = {
      b.parameter("output_weight", {H, v.q_width()}, {b.tensor_part(Role::output, {H, wide}, 1, b.residual_init())})};
  if (v.spec.output_bias) v.w_out.bias = b.parameter("output_bias", {H}, {b.part(Role::output_bias, {H}, zero)});
  if (v.spec.sinks) v.sinks = b.parameter("sinks", {v.hq}, {b.tensor_part(Role::sinks, {v.spec.heads}, 0, zero)});
  if (v.spec.rope.enabled) v.rope = add_rotary_tables(b, v.spec.rope, v.d);
}

// The body's heads are those of this context rank.
void divide_heads(ModuleBuilder& b, SelfAttention& v, TokenRanks among) {
  const std::int64_t ranks = among.size, q = v.q_width(), k = v.k_width();
  const auto of = [](std::int64_t width, std::int64_t heads) { return std::pair{width, heads}; };
  std::vector<HeadSection> in = sections_of({of(q, v.hq), of(k, v.hk), of(k, v.hk)});
  if (v.spec.output_gate)
    in = v.shares_keys() ? sections_of({of(q, v.hq), of(q, v.hq), of(k, v.hk), of(k, v.hk)})
                         : sections_of({of(q, v.hq), of(k, v.hk), of(k, v.hk), of(q, v.hq)});
  v.exchange_heads(b, std::move(among), std::move(in), sections_of({of(q, v.hq)}));
  if (v.spec.sinks) v.sinks = v.rows_of_heads(b, v.sinks, sections_of({of(v.hq, v.hq)}));
  v.hq /= ranks;
  v.hk = std::max<std::int64_t>(v.hk / ranks, 1);
  v.q_norm.groups = v.hq;
  v.k_norm.groups = v.hk;
}

void add_values(ModuleBuilder& b, SelfAttention& v) {
  const std::int64_t T = v.body_tokens(b), H = b.config().hidden;
  const DType compute = b.compute(), acc = b.accumulate();
  v.add_norm_values(b);
  v.rope.positions = v.body_positions(b);
  v.boundaries = b.module().boundaries;
  v.qkv = b.activation("qkv", compute, {T, v.width()});
  v.in = v.spec.qk_norm ? b.activation("qkv_raw", compute, {T, v.width()}) : v.qkv;
  if (v.spec.qk_norm) {
    v.q_inverse = b.activation("q_inverse", acc, {T * v.hq});
    v.k_inverse = b.activation("k_inverse", acc, {T * v.hk});
  }
  v.context = b.activation("context", compute, {T, v.q_width()});
  v.mixed = v.spec.output_gate ? b.activation("gated", compute, {T, v.q_width()}) : v.context;
  v.lse = b.activation("lse", acc, {v.hq, T});
  v.y = b.activation("y", compute, {b.stream_tokens(), H});
  v.din = b.activation("d(qkv)", compute, {T, v.width()});
  v.dmixed = b.scratch("d(context)", compute, {T, v.q_width()});
  v.dxn = v.input_gradient(b);
  v.delta = b.scratch("delta", acc, {v.hq, T});
  if (v.spec.sinks) v.dsinks = b.scratch("d(sinks)", acc, {v.hq});
  v.add_gradients(b);
}

void rotate(const Run& r, const SelfAttention& v, const Tensor& packed, bool inverse) {
  if (!v.spec.rope.enabled) return;
  Rotary arguments;
  arguments.cosine = r[v.rope.cosine];
  arguments.sine = r[v.rope.sine];
  arguments.positions = given(r, v.rope.positions);
  arguments.head_dim = v.d;
  arguments.width = v.rope.width;
  arguments.length = v.length;
  arguments.style = v.spec.rope.style;
  arguments.inverse = inverse;
  arguments.x = arguments.y =
      packed.slice_columns(v.q_column(), v.q_width() + v.k_width());  // queries and keys are adjacent
  arguments.heads = v.hq + v.hk;
  r.ops().rotary(r.stream(), arguments);
}

Attention attention_of(const Run& r, const SelfAttention& v) {
  const Tensor packed = r[v.qkv];
  Attention a;
  a.q = v.q(packed);
  a.k = v.k(packed);
  a.v = v.v(packed);
  a.out = r[v.context];
  a.lse = r[v.lse];
  a.boundaries = given(r, v.boundaries);
  a.length = v.length;
  a.heads = v.hq;
  a.kv_heads = v.hk;
  a.dim = a.value_dim = v.d;
  if (v.spec.sinks) a.sinks = r[v.sinks.value];
  a.window = v.spec.window;
  a.scale = v.scale;
  return a;
}

void prepare(const Run& r, const SelfAttention& v) {
  const Tensor raw = r[v.in], qkv = r[v.qkv];
  if (v.spec.qk_norm) {
    v.q_norm.forward(r, v.q(raw), v.q(qkv), v.q_inverse);
    v.k_norm.forward(r, v.k(raw), v.k(qkv), v.k_inverse);
    r.ops().cast(r.stream(), {v.v(raw), v.v(qkv)});
  }
  rotate(r, v, qkv, false);
}

// From the gradients of qkv to those of the raw product, in place.
void prepare_backward(const Run& r, const SelfAttention& v) {
  const Tensor dqkv = r[v.din];
  rotate(r, v, dqkv, true);
  if (!v.spec.qk_norm) return;
  const Tensor raw = r[v.in];
  v.q_norm.backward(r, v.q(raw), v.q_inverse, v.q(dqkv), v.q(dqkv));
  v.k_norm.backward(r, v.k(raw), v.k_inverse, v.k(dqkv), v.k(dqkv));
}

void attend(const Run& r, const SelfAttention& v) {
  r.ops().attention(r.stream(), attention_of(r, v));
  if (v.spec.output_gate) r.ops().sigmoid_gate(r.stream(), {r[v.context], v.gate(r[v.in]), r[v.mixed]});
}

void run_backward(const Run& r, const SelfAttention& v) {
  const Tensor raw = r[v.in], dqkv = r[v.din], dcontext = r[v.dmixed];
  if (v.spec.output_gate)
    r.ops().sigmoid_gate_backward(r.stream(), {r[v.context], v.gate(raw), dcontext, dcontext, v.gate(dqkv)});
  AttentionBackward backward{attention_of(r, v), dcontext, v.q(dqkv), v.k(dqkv), v.v(dqkv)};
  backward.scratch = r[v.delta];
  backward.repeatable = v.repeatable;
  if (v.spec.sinks) backward.dsinks = r[v.dsinks];
  r.ops().attention_backward(r.stream(), backward);
  if (v.spec.sinks)
    r.ops().column_sum(r.stream(), {r[v.dsinks].reshape({1, v.hq}), r[v.sinks.gradient], r.store(v.sinks.gradient)});
  prepare_backward(r, v);
}

PieceCode forward(const SelfAttention& v) {
  PieceCode f;
  reads(f, {v.x, v.norm.value, v.w_in.value, v.w_out.value});
  writes(f, {v.xn, v.inverse, v.qkv, v.context, v.lse, v.y});
  if (v.spec.output_gate) writes(f, {v.mixed});
  if (v.spec.qkv_bias) reads(f, {v.w_in.bias.value});
  if (v.spec.output_bias) reads(f, {v.w_out.bias.value});
  if (v.spec.sinks) reads(f, {v.sinks.value});
  if (v.spec.qk_norm) {
    reads(f, {v.q_norm.value, v.k_norm.value});
    writes(f, {v.in, v.q_inverse, v.k_inverse});
  }
  if (v.spec.rope.enabled) reads(f, {v.rope.cosine, v.rope.sine, v.rope.positions});
  reads(f, {v.boundaries});
  f.run = [v](const Run& r) {
    prepare(r, v);
    attend(r, v);
  };
  return f;
}

std::vector<PiecePart> parts(const SelfAttention& v) {
  PiecePart in{"in"}, core{"core", set_of({RecomputeModule::core_attn})};
  writes(in.code, {v.qkv});
  if (v.spec.qk_norm) {
    reads(in.code, {v.q_norm.value, v.k_norm.value});
    writes(in.code, {v.in, v.q_inverse, v.k_inverse});
  }
  if (v.spec.rope.enabled) reads(in.code, {v.rope.cosine, v.rope.sine, v.rope.positions});
  in.code.run = [v](const Run& r) { prepare(r, v); };
  reads(core.code, {v.qkv, v.boundaries});
  if (v.spec.sinks) reads(core.code, {v.sinks.value});
  writes(core.code, {v.context, v.lse});
  if (v.spec.output_gate) {
    if (v.spec.qk_norm) reads(core.code, {v.in});
    writes(core.code, {v.mixed});
  }
  core.code.run = [v](const Run& r) { attend(r, v); };
  return {std::move(in), std::move(core)};
}

PieceCode backward(const SelfAttention& v) {
  PieceCode g;
  reads(g, {v.dy, v.x, v.inverse, v.norm.value, v.w_in.value, v.w_out.value, v.qkv, v.context, v.lse});
  writes(g, {v.din, v.dmixed, v.dxn, v.delta, v.dx});
  adds_to(g, {v.norm.gradient});
  if (v.spec.rope.enabled) reads(g, {v.rope.cosine, v.rope.sine, v.rope.positions});
  reads(g, {v.boundaries});
  if (v.spec.sinks) {
    reads(g, {v.sinks.value});
    writes(g, {v.dsinks});
    adds_to(g, {v.sinks.gradient});
  }
  if (v.spec.qk_norm) {
    reads(g, {v.q_norm.value, v.k_norm.value, v.in, v.q_inverse, v.k_inverse});
    adds_to(g, {v.q_norm.gradient, v.k_norm.gradient});
  }
  g.run = [v](const Run& r) { run_backward(r, v); };
  return g;
}

void add_spread_values(ModuleBuilder& b, SelfAttention& v) {
  const std::int64_t t = v.body_tokens(b);
  const DType compute = b.compute(), acc = b.accumulate();
  BlockAttention& a = v.blocks;
  v.add_norm_values(b);
  v.rope.positions = v.body_positions(b);
  v.qkv = b.activation("qkv", compute, {t, v.width()});
  v.in = v.spec.qk_norm ? b.activation("qkv_raw", compute, {t, v.width()}) : v.qkv;
  if (v.spec.qk_norm) {
    v.q_inverse = b.activation("q_inverse", acc, {t * v.hq});
    v.k_inverse = b.activation("k_inverse", acc, {t * v.hk});
  }
  a.ranks = ring_of(b);
  a.gathers = b.context_transfer() == ContextTransfer::all_gather;
  a.heads = v.hq, a.kv_heads = v.hk, a.dim = a.value_dim = v.d;
  a.window = v.spec.window, a.scale = v.scale;
  if (v.spec.sinks) a.sinks = v.sinks;
  a.queries = v.qkv, a.query_column = v.q_column();
  a.add_values(b);
  v.context = b.activation("context", compute, {t, v.q_width()});
  v.mixed = v.context;
  v.dmixed = a.dout;
  if (v.spec.output_gate) {
    v.mixed = b.activation("gated", compute, {t, v.q_width()});
    v.dmixed = b.scratch("d(gated)", compute, {t, v.q_width()});
    v.dgate = b.activation("d(gate)", compute, {t, v.q_width()});
  }
  v.y = b.activation("y", compute, {b.stream_tokens(), b.config().hidden});
  v.din = b.activation("d(qkv)", compute, {t, v.width()});
  v.dxn = v.input_gradient(b);
  v.add_gradients(b);
}

PieceCode prepare_keys(const SelfAttention& v) {
  PieceCode code;
  writes(code, {v.qkv, v.blocks.keys});
  if (v.spec.qk_norm) {
    reads(code, {v.q_norm.value, v.k_norm.value});
    writes(code, {v.in, v.q_inverse, v.k_inverse});
  }
  if (v.spec.rope.enabled) reads(code, {v.rope.cosine, v.rope.sine, v.rope.positions});
  code.run = [v](const Run& r) {
    prepare(r, v);
    v.blocks.pack(r, v.k(r[v.qkv]), v.v(r[v.qkv]));
  };
  return code;
}

PieceCode join_gradients(const SelfAttention& v) {
  PieceCode code;
  reads(code, {v.blocks.dq, v.blocks.dkeys, v.dgate});
  writes(code, {v.din});
  if (v.spec.qk_norm) {
    reads(code, {v.q_norm.value, v.k_norm.value, v.in, v.q_inverse, v.k_inverse});
    adds_to(code, {v.q_norm.gradient, v.k_norm.gradient});
  }
  if (v.spec.rope.enabled) reads(code, {v.rope.cosine, v.rope.sine, v.rope.positions});
  code.run = [v](const Run& r) {
    const Tensor din = r[v.din], dkeys = r[v.blocks.dkeys];
    r.ops().cast(r.stream(), {r[v.blocks.dq], v.q(din)});
    r.ops().cast(r.stream(), {v.blocks.k(dkeys), v.k(din)});
    r.ops().cast(r.stream(), {v.blocks.v(dkeys), v.v(din)});
    if (v.spec.output_gate) r.ops().cast(r.stream(), {r[v.dgate], v.gate(din)});
    prepare_backward(r, v);
  };
  return code;
}

PieceCode read_result(const SelfAttention& v) {
  PieceCode code;
  reads(code, {v.blocks.out});
  writes(code, {v.context});
  if (v.spec.output_gate) {
    reads(code, {v.in});
    writes(code, {v.mixed});
  }
  code.run = [v](const Run& r) {
    r.ops().cast(r.stream(), {r[v.blocks.out], r[v.context]});
    if (v.spec.output_gate) r.ops().sigmoid_gate(r.stream(), {r[v.context], v.gate(r[v.in]), r[v.mixed]});
  };
  return code;
}

PieceCode read_result_backward(const SelfAttention& v) {
  PieceCode code;
  if (v.spec.output_gate) {
    reads(code, {v.in});
    writes(code, {v.dmixed, v.dgate});
    code.run = [v](const Run& r) {
      r.ops().sigmoid_gate_backward(r.stream(),
                                    {r[v.context], v.gate(r[v.in]), r[v.dmixed], r[v.blocks.dout], r[v.dgate]});
    };
  }
  v.blocks.add_delta(code, v.context);
  return code;
}

// On context ranks that send each other keys.
ValueId add_spread_attention(ModuleBuilder& b, SelfAttention v) {
  add_spread_values(b, v);
  return v.add_spread_pieces(b, {prepare_keys(v), read_result(v), read_result_backward(v), join_gradients(v), {}},
                             [&](ModuleBuilder& builder) { v.blocks.add_pieces(builder); });
}

}  // namespace

ValueId add_attention(ModuleBuilder& b, const AttentionSpec& spec, ValueId x) {
  SelfAttention v = described(b, spec);
  v.add_norm_weight(b, x);
  add_parameters(b, v);
  const ContextTransfer transfer = b.context_transfer();
  const bool context = b.context_ranks().divide();
  if (context && transfer >= ContextTransfer::a2a) divide_heads(b, v, heads_of(b));
  if (context && transfer != ContextTransfer::a2a) return add_spread_attention(b, std::move(v));
  add_values(b, v);
  return v.add_piece(b, forward(v), backward(v), v.weight_gradient(), parts(v));
}

}  // namespace weft
