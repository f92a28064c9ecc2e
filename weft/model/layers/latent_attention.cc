// `+`: y = x + W_o attention(q, k, v), with queries, keys and values computed from low-rank latents. `D`: the same,
// over the keys that an indexer chooses (indexer.cc).
//
//   [a | c | s] = W_down norm(x)      a [T, q_rank], c [T, kv_rank], s [T, rotary_dim]
//   q = W_q norm(a)                   per head [still | turning]; without q_rank, W_down computes q itself
//   [n | v] = W_kv norm(c)            n: the heads' own parts of the keys
//   k_h = [n_h | rope(s)]             the turning part is the same for all heads
// T tokens, H hidden, h heads. Matrices that read the same rows are stored as one. Tensor ranks divide the heads; all of them
// compute the latents, from all tokens.
#include <algorithm>
#include <cmath>

#include "weft/device/operations.h"
#include "weft/model/layers/block_attention.h"
#include "weft/model/layers/indexer.h"
#include "weft/model/layers/layers.h"
#include "weft/model/layers/residual_block.h"
#include "weft/model/layers/rotary.h"
#include "weft/model/layers/uses.h"

namespace weft {

namespace {

struct LatentAttention : ResidualBlock {  // in: [a | c | s], mixed: the context
  std::int64_t heads = 0, q_rank = 0, kv_rank = 0, still = 0, turning = 0, value = 0, length = 0;
  double scale = 0;
  bool repeatable = true, sparse = false;
  RotaryStyle style = RotaryStyle::interleaved;

  ValueId boundaries;
  ValueId a_norm, a_inverse, c_norm, c_inverse, q, k, kv, lse;
  ValueId dq, dk, dkv, dlatent_q, dlatent_kv, delta;
  Norm q_norm, kv_norm;
  Linear w_q, w_kv;
  RotaryTables rope;
  IndexerParts indexer;   // empty unless sparse
  BlockAttention blocks;  // of context ranks that send each other keys

  bool low_rank() const { return q_rank > 0; }
  std::int64_t q_width() const { return heads * (still + turning); }
  std::int64_t first_width() const { return low_rank() ? q_rank : q_width(); }  // of a, or of q
  std::int64_t down_width() const { return first_width() + kv_rank + turning; }
  std::int64_t own_width() const { return heads * still; }
  std::int64_t value_width() const { return heads * value; }
  std::int64_t kv_width() const { return own_width() + value_width(); }
  Tensor a(const Tensor& down) const { return down.slice_columns(0, first_width()); }
  Tensor c(const Tensor& down) const { return down.slice_columns(first_width(), kv_rank); }
  Tensor shared(const Tensor& down) const { return down.slice_columns(first_width() + kv_rank, turning); }
  Tensor own(const Tensor& both) const { return both.slice_columns(0, own_width()); }
  Tensor v(const Tensor& both) const { return both.slice_columns(own_width(), value_width()); }
};

LatentAttention described(const ModuleBuilder& b, const LatentAttentionSpec& spec, bool sparse) {
  LatentAttention v;
  v.heads = b.tensor_ranks().share(spec.heads);
  v.q_rank = spec.q_rank;
  v.kv_rank = spec.kv_rank;
  v.still = spec.head_dim;
  v.turning = spec.rotary_dim;
  v.value = spec.value_dim;
  v.length = b.options().length;
  v.scale = spec.scale > 0 ? spec.scale : 1 / std::sqrt(static_cast<double>(spec.head_dim + spec.rotary_dim));
  v.repeatable = b.options().repeatable_attention;
  v.sparse = sparse;
  v.style = spec.rope.style;
  return v;
}

void add_parameters(ModuleBuilder& b, const LatentAttentionSpec& spec, LatentAttention& v) {
  const std::int64_t H = b.config().hidden;
  const auto latent_norm = [&](const char* name, Role role, std::int64_t width) {
    Norm norm = add_norm(b, name, role, width);
    if (spec.norm_epsilon > 0) norm.epsilon = spec.norm_epsilon;
    return norm;
  };
  const std::int64_t all_q = spec.heads * (v.still + v.turning), down = v.kv_rank + v.turning;
  const ParameterPart kv_down = b.part(Role::kv_down, {down, H}, b.matrix_init());
  if (v.low_rank()) {
    v.w_in = {b.parameter("down_weight", {v.down_width(), H},
                          {b.part(Role::q_down, {v.q_rank, H}, b.matrix_init()), kv_down})};
    v.q_norm = latent_norm("q_latent_norm_weight", Role::q_latent_norm, v.q_rank);
    v.w_q = {b.parameter("q_up_weight", {v.q_width(), v.q_rank},
                         {b.tensor_part(Role::q_up, {all_q, v.q_rank}, 0, b.matrix_init())})};
  } else if (v.tensor_ranks().divide()) {
    v.w_in = {b.parameter("q_weight", {v.q_width(), H}, {b.tensor_part(Role::q, {all_q, H}, 0, b.matrix_init())})};
    v.own_columns = v.q_width();
    v.shared_inputs.push_back({{b.parameter("down_weight", {down, H}, {kv_down})}, {{0, down, v.q_width()}}});
  } else {
    v.w_in = {b.parameter("down_weight", {v.down_width(), H}, {b.part(Role::q, {all_q, H}, b.matrix_init()), kv_down})};
  }
  v.kv_norm = latent_norm("kv_latent_norm_weight", Role::kv_latent_norm, v.kv_rank);
  v.w_kv = {b.parameter("kv_up_weight", {v.kv_width(), v.kv_rank},
                        {b.tensor_part(Role::k_up, {spec.heads * v.still, v.kv_rank}, 0, b.matrix_init()),
                         b.tensor_part(Role::v_up, {spec.heads * v.value, v.kv_rank}, 0, b.matrix_init())})};
  v.w_out = {b.parameter("output_weight", {H, v.value_width()},
                         {b.tensor_part(Role::output, {H, spec.heads * v.value}, 1, b.residual_init())})};
  v.rope = add_rotary_tables(b, spec.rope, v.turning);
}

// The body's heads are those of this context rank, which has the latents of all tokens.
void divide_heads(ModuleBuilder& b, LatentAttention& v, TokenRanks among) {
  const std::int64_t ranks = among.size, heads = v.heads;
  const auto of = [](std::int64_t count, std::int64_t parts) { return std::pair{count, parts}; };
  v.exchange_heads(b, std::move(among),
                   sections_of({of(v.first_width(), v.low_rank() ? 1 : heads), of(v.kv_rank, 1), of(v.turning, 1)}),
                   sections_of({of(v.value_width(), heads)}));
  const auto rows = [&](ParameterValues& whole, const std::vector<HeadSection>& sections) {
    whole = v.rows_of_heads(b, whole, sections);
  };
  if (v.low_rank()) rows(v.w_q, sections_of({of(v.q_width(), heads)}));
  rows(v.w_kv, sections_of({of(v.own_width(), heads), of(v.value_width(), heads)}));
  v.heads /= ranks;
}

void add_values(ModuleBuilder& b, LatentAttention& v) {
  const std::int64_t T = v.body_tokens(b), H = b.config().hidden;
  const DType compute = b.compute(), acc = b.accumulate();
  v.add_norm_values(b);
  v.rope.positions = v.body_positions(b);
  v.boundaries = b.module().boundaries;
  v.in = b.activation("down", compute, {T, v.down_width() + v.aside.count});
  v.din = b.activation("d(down)", compute, {T, v.down_width()});
  if (v.low_rank()) {
    v.a_norm = b.activation("q_latent", compute, {T, v.q_rank});
    v.a_inverse = b.activation("q_latent_inverse", acc, {T});
    v.q = b.activation("q", compute, {T, v.q_width()});
    v.dq = b.activation("d(q)", compute, {T, v.q_width()});
    v.dlatent_q = b.scratch("d(q_latent)", compute, {T, v.q_rank});
  }
  v.c_norm = b.activation("kv_latent", compute, {T, v.kv_rank});
  v.c_inverse = b.activation("kv_latent_inverse", acc, {T});
  v.k = b.activation("k", compute, {T, v.q_width()});
  v.kv = b.activation("kv", compute, {T, v.kv_width()});
  v.dkv = b.activation("d(kv)", compute, {T, v.kv_width()});
  v.dk = b.scratch("d(k)", compute, {T, v.q_width()});
  v.dlatent_kv = b.scratch("d(kv_latent)", compute, {T, v.kv_rank});
  v.mixed = b.activation("context", compute, {T, v.value_width()});
  v.dmixed = b.scratch("d(context)", compute, {T, v.value_width()});
  v.lse = b.activation("lse", acc, {v.heads, T});
  v.delta = b.scratch("delta", acc, {v.heads, T});
  v.y = b.activation("y", compute, {b.stream_tokens(), H});
  v.dxn = v.input_gradient(b);
  v.add_gradients(b);
}

Tensor queries(const Run& r, const LatentAttention& v) { return v.low_rank() ? r[v.q] : v.a(r[v.in]); }

Attention attention_of(const Run& r, const LatentAttention& v) {
  Attention a;
  a.q = queries(r, v);
  a.k = r[v.k];
  a.v = v.v(r[v.kv]);
  a.out = r[v.mixed];
  a.lse = r[v.lse];
  a.boundaries = given(r, v.boundaries);
  a.length = v.length;
  a.heads = a.kv_heads = v.heads;
  a.dim = v.still + v.turning;
  a.value_dim = v.value;
  a.scale = v.scale;
  return a;
}

// Queries, keys and values; turns the queries in place.
void raise_latents(const Run& r, const LatentAttention& v) {
  const Tensor down = r[v.in], kv = r[v.kv];
  if (v.low_rank()) {
    v.q_norm.forward(r, v.a(down), r[v.a_norm], v.a_inverse);
    v.w_q.forward(r, r[v.a_norm], r[v.q]);
  }
  v.kv_norm.forward(r, v.c(down), r[v.c_norm], v.c_inverse);
  v.w_kv.forward(r, r[v.c_norm], kv);
  LatentHeads heads{
      queries(r, v), v.own(kv), v.shared(down), r[v.k], r[v.rope.cosine], r[v.rope.sine], given(r, v.rope.positions)};
  heads.heads = v.heads, heads.still = v.still, heads.turning = v.turning;
  heads.length = v.length, heads.style = v.style;
  r.ops().latent_heads(r.stream(), heads);
}

void attend(const Run& r, const LatentAttention& v) {
  const Attention attention = attention_of(r, v);
  if (v.sparse) {
    r.ops().sparse_attention(r.stream(), {attention, r[v.indexer.keys]});
  } else {
    r.ops().attention(r.stream(), attention);
  }
}

// From the gradients of queries, keys and values to those of the latents.
void lower_gradients(const Run& r, const LatentAttention& v) {
  const Tensor down = r[v.in], ddown = r[v.din], dkv = r[v.dkv];
  const Tensor dq = v.low_rank() ? r[v.dq] : v.a(ddown);
  LatentHeadsBackward heads{
      dq, r[v.dk], v.own(dkv), v.shared(ddown), r[v.rope.cosine], r[v.rope.sine], given(r, v.rope.positions)};
  heads.heads = v.heads, heads.still = v.still, heads.turning = v.turning;
  heads.length = v.length, heads.style = v.style;
  r.ops().latent_heads_backward(r.stream(), heads);
  v.w_kv.backward(r, dkv, r[v.dlatent_kv]);
  v.kv_norm.backward(r, v.c(down), v.c_inverse, r[v.dlatent_kv], v.c(ddown));
  if (v.low_rank()) {
    v.w_q.backward(r, dq, r[v.dlatent_q]);
    v.q_norm.backward(r, v.a(down), v.a_inverse, r[v.dlatent_q], v.a(ddown));
  }
}

void run_backward(const Run& r, const LatentAttention& v) {
  const Tensor ddown = r[v.din], dkv = r[v.dkv];
  const Tensor dq = v.low_rank() ? r[v.dq] : v.a(ddown);
  const Attention attention = attention_of(r, v);
  if (v.sparse) {
    r.ops().sparse_attention_backward(r.stream(),
                                      {{attention, r[v.indexer.keys]}, r[v.dmixed], dq, r[v.dk], v.v(dkv), r[v.delta]});
  } else {
    AttentionBackward backward{attention, r[v.dmixed], dq, r[v.dk], v.v(dkv)};
    backward.scratch = r[v.delta];
    backward.repeatable = v.repeatable;
    r.ops().attention_backward(r.stream(), backward);
  }
  if (v.indexer.backward) v.indexer.backward.run(r);
  lower_gradients(r, v);
}

// Adds the uses of a part to those of the code that contains it, which may already have some of them.
void add_uses(PieceCode& code, const PieceCode& part) {
  for (const ValueUse& use : part.uses) {
    const bool there = std::any_of(code.uses.begin(), code.uses.end(),
                                   [&](const ValueUse& other) { return other.value == use.value; });
    if (!there) code.uses.push_back(use);
  }
}

PieceCode forward(const LatentAttention& v) {
  PieceCode f;
  reads(f, {v.x, v.norm.value, v.w_in.value, v.kv_norm.value, v.w_kv.value, v.w_out.value, v.rope.cosine, v.rope.sine,
            v.rope.positions, v.boundaries});
  writes(f, {v.xn, v.inverse, v.in, v.c_norm, v.c_inverse, v.k, v.kv, v.mixed, v.lse, v.y});
  if (v.low_rank()) {
    reads(f, {v.q_norm.value, v.w_q.value});
    writes(f, {v.a_norm, v.a_inverse, v.q});
  }
  if (v.sparse) add_uses(f, v.indexer.forward);
  f.run = [v](const Run& r) {
    raise_latents(r, v);
    if (v.sparse) v.indexer.forward.run(r);
    attend(r, v);
  };
  return f;
}

std::vector<PiecePart> parts(const LatentAttention& v) {
  PiecePart up{"up", set_of({RecomputeModule::mla_up_proj})}, core{"core", set_of({RecomputeModule::core_attn})};
  reads(up.code, {v.kv_norm.value, v.w_kv.value, v.rope.cosine, v.rope.sine, v.rope.positions});
  writes(up.code, {v.c_norm, v.c_inverse, v.k, v.kv});
  up.code.run = [v](const Run& r) { raise_latents(r, v); };
  reads(core.code, {v.k, v.kv, v.low_rank() ? v.q : v.in, v.boundaries});
  if (v.sparse) reads(core.code, {v.indexer.keys});
  writes(core.code, {v.mixed, v.lse});
  core.code.run = [v](const Run& r) { attend(r, v); };
  std::vector<PiecePart> all;
  if (v.low_rank()) {
    PiecePart down{"down"};
    writes(down.code, {v.in});
    all.push_back(std::move(down));
    reads(up.code, {v.in, v.q_norm.value, v.w_q.value});
    writes(up.code, {v.a_norm, v.a_inverse, v.q});
  } else {
    writes(up.code, {v.in});  // the queries turn within it, so it cannot be read a second time
  }
  all.push_back(std::move(up));
  if (v.sparse) all.push_back({"index", 0, v.indexer.forward});
  all.push_back(std::move(core));
  return all;
}

PieceCode backward(const LatentAttention& v) {
  PieceCode g;
  reads(g, {v.dy, v.x, v.inverse, v.norm.value, v.w_in.value, v.kv_norm.value, v.w_kv.value, v.w_out.value,
            v.rope.cosine, v.rope.sine, v.in, v.c_inverse, v.k, v.kv, v.mixed, v.lse, v.rope.positions, v.boundaries});
  writes(g, {v.dk, v.dkv, v.din, v.dmixed, v.dlatent_kv, v.delta, v.dxn, v.dx});
  adds_to(g, {v.norm.gradient, v.kv_norm.gradient});
  if (v.low_rank()) {
    reads(g, {v.q_norm.value, v.w_q.value, v.a_inverse, v.q});
    writes(g, {v.dq, v.dlatent_q});
    adds_to(g, {v.q_norm.gradient});
  }
  if (v.sparse) reads(g, {v.indexer.keys});
  if (v.indexer.backward) add_uses(g, v.indexer.backward);
  g.run = [v](const Run& r) { run_backward(r, v); };
  return g;
}

// What an indexer learns from where tensor ranks divide the heads.
void add_means(ModuleBuilder& b, const LatentAttention& v) {
  if (!v.indexer.means) return;
  b.piece("means_sum", Lane::tensor).backward = v.indexer.sum_of_means;
  PieceCode& means = b.piece("means").backward;
  means = v.indexer.means;
  // All that attention_of names.
  reads(means, {v.k, v.kv, v.low_rank() ? v.q : v.in, v.mixed, v.lse, v.boundaries});
}

PieceCode weight_gradient(const LatentAttention& v) {
  PieceCode w = v.weight_gradient();
  reads(w, {v.dkv, v.c_norm});
  adds_to(w, {v.w_kv.gradient});
  if (v.low_rank()) {
    reads(w, {v.dq, v.a_norm});
    adds_to(w, {v.w_q.gradient});
  }
  if (v.indexer.weight_gradient) add_uses(w, v.indexer.weight_gradient);
  w.run = [v, products = std::move(w.run)](const Run& r) {
    if (products) products(r);
    v.w_kv.weight_gradient(r, v.dkv, v.c_norm);
    if (v.low_rank()) v.w_q.weight_gradient(r, v.dq, v.a_norm);
    if (v.indexer.weight_gradient) v.indexer.weight_gradient.run(r);
  };
  return w;
}

void add_spread_values(ModuleBuilder& b, LatentAttention& v) {
  const std::int64_t t = v.body_tokens(b);
  const DType compute = b.compute(), acc = b.accumulate();
  BlockAttention& a = v.blocks;
  v.add_norm_values(b);
  v.rope.positions = v.body_positions(b);
  v.in = b.activation("down", compute, {t, v.down_width()});
  v.din = b.activation("d(down)", compute, {t, v.down_width()});
  if (v.low_rank()) {
    v.a_norm = b.activation("q_latent", compute, {t, v.q_rank});
    v.a_inverse = b.activation("q_latent_inverse", acc, {t});
    v.q = b.activation("q", compute, {t, v.q_width()});
    v.dq = b.activation("d(q)", compute, {t, v.q_width()});
    v.dlatent_q = b.scratch("d(q_latent)", compute, {t, v.q_rank});
  }
  v.c_norm = b.activation("kv_latent", compute, {t, v.kv_rank});
  v.c_inverse = b.activation("kv_latent_inverse", acc, {t});
  v.k = b.scratch("k", compute, {t, v.q_width()});
  v.kv = b.scratch("kv", compute, {t, v.kv_width()});
  v.dkv = b.activation("d(kv)", compute, {t, v.kv_width()});
  v.dk = b.scratch("d(k)", compute, {t, v.q_width()});
  v.dlatent_kv = b.scratch("d(kv_latent)", compute, {t, v.kv_rank});
  a.ranks = ring_of(b);
  a.gathers = b.context_transfer() == ContextTransfer::all_gather;
  a.heads = a.kv_heads = v.heads;
  a.dim = v.still + v.turning, a.value_dim = v.value, a.scale = v.scale;
  a.queries = v.low_rank() ? v.q : v.in;
  a.add_values(b);
  v.mixed = b.activation("context", compute, {t, v.value_width()});
  v.dmixed = a.dout;
  v.y = b.activation("y", compute, {b.stream_tokens(), b.config().hidden});
  v.dxn = v.input_gradient(b);
  v.add_gradients(b);
}

PieceCode make_keys(const LatentAttention& v) {
  PieceCode code;
  reads(code, {v.kv_norm.value, v.w_kv.value, v.rope.cosine, v.rope.sine, v.rope.positions});
  writes(code, {v.in, v.c_norm, v.c_inverse, v.k, v.kv, v.blocks.keys});
  if (v.low_rank()) {
    reads(code, {v.q_norm.value, v.w_q.value});
    writes(code, {v.a_norm, v.a_inverse, v.q});
  }
  code.run = [v](const Run& r) {
    raise_latents(r, v);
    v.blocks.pack(r, r[v.k], v.v(r[v.kv]));
  };
  return code;
}

PieceCode join_gradients(const LatentAttention& v) {
  PieceCode code;
  reads(code, {v.blocks.dq, v.blocks.dkeys, v.in, v.c_inverse, v.kv_norm.value, v.w_kv.value, v.rope.cosine,
               v.rope.sine, v.rope.positions});
  writes(code, {v.din, v.dk, v.dkv, v.dlatent_kv});
  adds_to(code, {v.kv_norm.gradient});
  if (v.low_rank()) {
    reads(code, {v.q_norm.value, v.w_q.value, v.a_inverse});
    writes(code, {v.dq, v.dlatent_q});
    adds_to(code, {v.q_norm.gradient});
  }
  code.run = [v](const Run& r) {
    const Tensor dkeys = r[v.blocks.dkeys];
    r.ops().cast(r.stream(), {r[v.blocks.dq], v.low_rank() ? r[v.dq] : v.a(r[v.din])});
    r.ops().cast(r.stream(), {v.blocks.k(dkeys), r[v.dk]});
    r.ops().cast(r.stream(), {v.blocks.v(dkeys), v.v(r[v.dkv])});
    lower_gradients(r, v);
  };
  return code;
}

PieceCode up_weight_gradients(const LatentAttention& v) {
  PieceCode w;
  reads(w, {v.dkv, v.c_norm});
  adds_to(w, {v.w_kv.gradient});
  if (v.low_rank()) {
    reads(w, {v.dq, v.a_norm});
    adds_to(w, {v.w_q.gradient});
  }
  w.run = [v](const Run& r) {
    v.w_kv.weight_gradient(r, v.dkv, v.c_norm);
    if (v.low_rank()) v.w_q.weight_gradient(r, v.dq, v.a_norm);
  };
  return w;
}

// On context ranks that send each other keys and values of all heads.
ValueId add_spread_attention(ModuleBuilder& b, LatentAttention v) {
  add_spread_values(b, v);
  PieceCode result, result_backward;
  reads(result, {v.blocks.out});
  writes(result, {v.mixed});
  result.run = [v](const Run& r) { r.ops().cast(r.stream(), {r[v.blocks.out], r[v.mixed]}); };
  v.blocks.add_delta(result_backward, v.mixed);
  return v.add_spread_pieces(b,
                             {make_keys(v), std::move(result), std::move(result_backward), join_gradients(v),
                              up_weight_gradients(v), set_of({RecomputeModule::mla_up_proj})},
                             [&](ModuleBuilder& builder) { v.blocks.add_pieces(builder); });
}

}  // namespace

ValueId add_latent_attention(ModuleBuilder& b, const LatentAttentionSpec& spec, bool sparse, ValueId x) {
  LatentAttention v = described(b, spec, sparse);
  v.add_norm_weight(b, x);
  add_parameters(b, spec, v);
  // The choice of keys needs all tokens: sparse attention always exchanges heads.
  const ContextTransfer transfer = sparse ? ContextTransfer::a2a : b.context_transfer();
  const bool context = b.context_ranks().divide();
  if (context && sparse) {
    v.aside = {add_indexer_weight(b, spec.indexer), v.down_width(), spec.indexer.dim + spec.indexer.heads};
    v.own_columns = v.down_width();
  }
  if (context && transfer >= ContextTransfer::a2a)
    divide_heads(b, v,
                 sparse ? TokenRanks::all(b.options().layout, b.options().batch, b.options().length) : heads_of(b));
  if (context && transfer != ContextTransfer::a2a) return add_spread_attention(b, std::move(v));
  add_values(b, v);
  if (sparse)
    v.indexer =
        add_indexer(b, spec.indexer, {v.xn_of_body(), v.xn_of_weights(), context ? v.in : ValueId{}, v.aside.column},
                    v.a_norm, v.rope, spec.heads, [v](const Run& r) { return attention_of(r, v); });
  return v.add_piece(b, forward(v), backward(v), weight_gradient(v), parts(v), {}, [&] { add_means(b, v); });
}

}  // namespace weft
