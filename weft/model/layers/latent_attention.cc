// `+`: y = x + W_o attention(q, k, v), whose queries, keys and values come out of low-rank latents. `D`: the same over
// the keys that an indexer chooses (indexer.cc).
//
//   [a | c | s] = W_down norm(x)      a [T, q_rank], c [T, kv_rank], s [T, rotary_dim]
//   q = W_q norm(a)                   per head [still | turning]; without a rank the first matrix makes q itself
//   [n | v] = W_kv norm(c)            n: the heads' own parts of the keys
//   k_h = [n_h | rope(s)]             the turning part is one for all heads
// T tokens, H hidden, h heads. Matrices that read the same rows lie in one.
#include <algorithm>
#include <cmath>

#include "weft/device/operations.h"
#include "weft/model/layers/indexer.h"
#include "weft/model/layers/layers.h"

namespace weft {

namespace {

struct Values {
  ValueId x, y, xn, inverse, down, a_norm, a_inverse, c_norm, c_inverse, q, k, kv, context, lse;
  ValueId dq, dk, dkv, ddown, dcontext, dxn, dlatent_q, dlatent_kv, delta;
  ParameterValues norm, w_down, q_norm, w_q, kv_norm, w_kv, w_out;
  RotaryTables rope;
};

struct Sizes {
  std::int64_t heads, q_rank, kv_rank, still, turning, value, length;
  double scale, eps, latent_eps;
  bool zero_centred, repeatable;

  std::int64_t q_width() const { return heads * (still + turning); }
  std::int64_t first_width() const { return q_rank > 0 ? q_rank : q_width(); }  // of a, or of q
  std::int64_t down_width() const { return first_width() + kv_rank + turning; }
  std::int64_t own_width() const { return heads * still; }
  std::int64_t value_width() const { return heads * value; }
  Tensor a(const Tensor& down) const { return down.slice_columns(0, first_width()); }
  Tensor c(const Tensor& down) const { return down.slice_columns(first_width(), kv_rank); }
  Tensor shared(const Tensor& down) const { return down.slice_columns(first_width() + kv_rank, turning); }
  Tensor own(const Tensor& kv) const { return kv.slice_columns(0, own_width()); }
  Tensor v(const Tensor& kv) const { return kv.slice_columns(own_width(), value_width()); }
};

Attention attention_of(const Run& r, const Values& v, const Sizes& s) {
  Attention a;
  a.q = s.q_rank > 0 ? r[v.q] : s.a(r[v.down]);
  a.k = r[v.k];
  a.v = s.v(r[v.kv]);
  a.out = r[v.context];
  a.lse = r[v.lse];
  a.length = s.length;
  a.heads = a.kv_heads = s.heads;
  a.dim = s.still + s.turning;
  a.value_dim = s.value;
  a.scale = s.scale;
  return a;
}

Sizes sizes_of(const ModuleBuilder& b, const LatentAttentionSpec& spec) {
  const double eps = b.config().norm_epsilon;
  const auto dim = static_cast<double>(spec.head_dim + spec.rotary_dim);
  return {spec.heads,
          spec.q_rank,
          spec.kv_rank,
          spec.head_dim,
          spec.rotary_dim,
          spec.value_dim,
          b.options().length,
          spec.scale > 0 ? spec.scale : 1 / std::sqrt(dim),
          eps,
          spec.norm_epsilon > 0 ? spec.norm_epsilon : eps,
          b.config().zero_centred_norms,
          b.options().repeatable_attention};
}

void add_parameters(ModuleBuilder& b, const Sizes& s, Values& v) {
  const std::int64_t H = b.config().hidden;
  const bool low_rank = s.q_rank > 0;
  v.norm = b.norm_weight("norm_weight", Role::norm, H);
  v.w_down = b.parameter("down_weight", {s.down_width(), H},
                         {b.part(low_rank ? Role::q_down : Role::q, {s.first_width(), H}, b.matrix_init()),
                          b.part(Role::kv_down, {s.kv_rank + s.turning, H}, b.matrix_init())});
  if (low_rank) {
    v.q_norm = b.norm_weight("q_latent_norm_weight", Role::q_latent_norm, s.q_rank);
    v.w_q = b.parameter("q_up_weight", {s.q_width(), s.q_rank},
                        {b.part(Role::q_up, {s.q_width(), s.q_rank}, b.matrix_init())});
  }
  v.kv_norm = b.norm_weight("kv_latent_norm_weight", Role::kv_latent_norm, s.kv_rank);
  v.w_kv = b.parameter("kv_up_weight", {s.own_width() + s.value_width(), s.kv_rank},
                       {b.part(Role::k_up, {s.own_width(), s.kv_rank}, b.matrix_init()),
                        b.part(Role::v_up, {s.value_width(), s.kv_rank}, b.matrix_init())});
  v.w_out = b.parameter("output_weight", {H, s.value_width()},
                        {b.part(Role::output, {H, s.value_width()}, b.residual_init())});
}

void add_values(ModuleBuilder& b, const Sizes& s, Values& v) {
  const std::int64_t T = b.tokens(), H = b.config().hidden;
  const DType compute = b.compute(), acc = b.accumulate();
  const bool low_rank = s.q_rank > 0;
  v.xn = b.activation("xn", compute, {T, H});
  v.inverse = b.activation("inverse", acc, {T});
  v.down = b.activation("down", compute, {T, s.down_width()});
  v.ddown = b.activation("d(down)", compute, {T, s.down_width()});
  if (low_rank) {
    v.a_norm = b.activation("q_latent", compute, {T, s.q_rank});
    v.a_inverse = b.activation("q_latent_inverse", acc, {T});
    v.q = b.activation("q", compute, {T, s.q_width()});
    v.dq = b.activation("d(q)", compute, {T, s.q_width()});
    v.dlatent_q = b.scratch("d(q_latent)", compute, {T, s.q_rank});
  }
  v.c_norm = b.activation("kv_latent", compute, {T, s.kv_rank});
  v.c_inverse = b.activation("kv_latent_inverse", acc, {T});
  v.k = b.activation("k", compute, {T, s.q_width()});
  v.kv = b.activation("kv", compute, {T, s.own_width() + s.value_width()});
  v.dkv = b.activation("d(kv)", compute, {T, s.own_width() + s.value_width()});
  v.dk = b.scratch("d(k)", compute, {T, s.q_width()});
  v.dlatent_kv = b.scratch("d(kv_latent)", compute, {T, s.kv_rank});
  v.context = b.activation("context", compute, {T, s.value_width()});
  v.dcontext = b.scratch("d(context)", compute, {T, s.value_width()});
  v.lse = b.activation("lse", acc, {s.heads, T});
  v.delta = b.scratch("delta", acc, {s.heads, T});
  v.y = b.activation("y", compute, {T, H});
  v.dxn = b.scratch("d(xn)", compute, {T, H});
}

// Adds a part's uses to those of the piece it stands in, which may have some of them already.
void add_uses(PieceCode& code, const PieceCode& part) {
  for (const ValueUse& use : part.uses) {
    const bool there = std::any_of(code.uses.begin(), code.uses.end(),
                                   [&](const ValueUse& other) { return other.value == use.value; });
    if (!there) code.uses.push_back(use);
  }
}

}  // namespace

ValueId add_latent_attention(ModuleBuilder& b, const LatentAttentionSpec& spec, bool sparse, ValueId x) {
  const Sizes s = sizes_of(b, spec);
  const bool low_rank = s.q_rank > 0;
  Values v;
  v.x = x;
  add_parameters(b, s, v);
  v.rope = add_rotary_tables(b, spec.rope, s.turning);
  add_values(b, s, v);
  const ValueId dx = b.gradient_of(x), dy = b.gradient_of(v.y);
  const RotaryStyle style = spec.rope.style;
  IndexerParts indexer;
  if (sparse)
    indexer =
        add_indexer(b, spec.indexer, v.xn, v.a_norm, v.rope, [v, s](const Run& r) { return attention_of(r, v, s); });

  Piece& p = b.piece("mix");
  PieceCode& f = p.forward;
  f.uses = {{x},
            {v.norm.value},
            {v.w_down.value},
            {v.kv_norm.value},
            {v.w_kv.value},
            {v.w_out.value},
            {v.rope.cosine},
            {v.rope.sine}};
  for (ValueId made : {v.xn, v.inverse, v.down, v.c_norm, v.c_inverse, v.k, v.kv, v.context, v.lse, v.y})
    f.uses.push_back({made, Access::write});
  if (low_rank)
    f.uses.insert(f.uses.end(), {{v.q_norm.value},
                                 {v.w_q.value},
                                 {v.a_norm, Access::write},
                                 {v.a_inverse, Access::write},
                                 {v.q, Access::write}});
  if (sparse) add_uses(f, indexer.forward);
  f.run = [=](const Run& r) {
    const auto project = [&](const Tensor& in, ParameterValues w, const Tensor& out) {
      r.ops().matmul(r.stream(), {in, r[w.value], out, Transposed::no, Transposed::yes});
    };
    const auto norm = [&](const Tensor& in, ParameterValues w, ValueId out, ValueId inverse, double eps) {
      r.ops().rms_norm(r.stream(), {in, r[w.value], r[out], r[inverse], 1, eps, s.zero_centred});
    };
    const Tensor down = r[v.down], kv = r[v.kv];
    norm(r[v.x], v.norm, v.xn, v.inverse, s.eps);
    project(r[v.xn], v.w_down, down);
    if (low_rank) {
      norm(s.a(down), v.q_norm, v.a_norm, v.a_inverse, s.latent_eps);
      project(r[v.a_norm], v.w_q, r[v.q]);
    }
    norm(s.c(down), v.kv_norm, v.c_norm, v.c_inverse, s.latent_eps);
    project(r[v.c_norm], v.w_kv, kv);
    const Attention attention = attention_of(r, v, s);
    LatentHeads heads{attention.q, s.own(kv), s.shared(down), r[v.k], r[v.rope.cosine], r[v.rope.sine]};
    heads.heads = s.heads, heads.still = s.still, heads.turning = s.turning;
    heads.length = s.length, heads.style = style;
    r.ops().latent_heads(r.stream(), heads);
    if (sparse) {
      indexer.forward.run(r);
      r.ops().sparse_attention(r.stream(), {attention, r[indexer.keys]});
    } else {
      r.ops().attention(r.stream(), attention);
    }
    Matmul out{r[v.context], r[v.w_out.value], r[v.y], Transposed::no, Transposed::yes};
    out.residual = r[v.x];
    r.ops().matmul(r.stream(), out);
  };

  PieceCode& g = p.backward;
  g.uses = {{dy}, {x}};
  for (ValueId read : {v.inverse, v.norm.value, v.w_down.value, v.kv_norm.value, v.w_kv.value, v.w_out.value,
                       v.rope.cosine, v.rope.sine, v.down, v.c_inverse, v.k, v.kv, v.context, v.lse})
    g.uses.push_back({read});
  for (ValueId made : {v.dk, v.dkv, v.ddown, v.dcontext, v.dlatent_kv, v.delta, v.dxn, dx})
    g.uses.push_back({made, Access::write});
  g.uses.insert(g.uses.end(), {{v.norm.gradient, Access::add}, {v.kv_norm.gradient, Access::add}});
  if (low_rank)
    g.uses.insert(g.uses.end(), {{v.q_norm.value},
                                 {v.w_q.value},
                                 {v.a_inverse},
                                 {v.q},
                                 {v.dq, Access::write},
                                 {v.dlatent_q, Access::write},
                                 {v.q_norm.gradient, Access::add}});
  if (sparse) g.uses.push_back({indexer.keys});
  if (indexer.backward) add_uses(g, indexer.backward);
  g.run = [=](const Run& r) {
    const auto norm_back = [&](const Tensor& in, ParameterValues w, ValueId inverse, ValueId d, const Tensor& out,
                               const Tensor& residual) {
      r.ops().rms_norm_backward(r.stream(), {in, r[w.value], r[inverse], r[d], out, residual, r[w.gradient], 1,
                                             s.zero_centred, r.store(w.gradient)});
    };
    const Tensor down = r[v.down], ddown = r[v.ddown], dkv = r[v.dkv];
    const Tensor dq = low_rank ? r[v.dq] : s.a(ddown);
    r.ops().matmul(r.stream(), {r[dy], r[v.w_out.value], r[v.dcontext]});
    const Attention attention = attention_of(r, v, s);
    if (sparse) {
      r.ops().sparse_attention_backward(
          r.stream(), {{attention, r[indexer.keys]}, r[v.dcontext], dq, r[v.dk], s.v(dkv), r[v.delta]});
    } else {
      AttentionBackward backward{attention, r[v.dcontext], dq, r[v.dk], s.v(dkv)};
      backward.scratch = r[v.delta];
      backward.repeatable = s.repeatable;
      r.ops().attention_backward(r.stream(), backward);
    }
    if (indexer.backward) indexer.backward.run(r);
    LatentHeadsBackward heads{dq, r[v.dk], s.own(dkv), s.shared(ddown), r[v.rope.cosine], r[v.rope.sine]};
    heads.heads = s.heads, heads.still = s.still, heads.turning = s.turning;
    heads.length = s.length, heads.style = style;
    r.ops().latent_heads_backward(r.stream(), heads);
    r.ops().matmul(r.stream(), {dkv, r[v.w_kv.value], r[v.dlatent_kv]});
    norm_back(s.c(down), v.kv_norm, v.c_inverse, v.dlatent_kv, s.c(ddown), {});
    if (low_rank) {
      r.ops().matmul(r.stream(), {dq, r[v.w_q.value], r[v.dlatent_q]});
      norm_back(s.a(down), v.q_norm, v.a_inverse, v.dlatent_q, s.a(ddown), {});
    }
    r.ops().matmul(r.stream(), {ddown, r[v.w_down.value], r[v.dxn]});
    norm_back(r[x], v.norm, v.inverse, v.dxn, r[dx], r[dy]);
  };

  PieceCode& w = p.weight_gradient;
  w.uses = {{dy}, {v.context}, {v.dkv}, {v.c_norm}, {v.ddown}, {v.xn}};
  for (ParameterValues made : {v.w_out, v.w_kv, v.w_down}) w.uses.push_back({made.gradient, Access::add});
  if (low_rank) w.uses.insert(w.uses.end(), {{v.dq}, {v.a_norm}, {v.w_q.gradient, Access::add}});
  if (indexer.weight_gradient) add_uses(w, indexer.weight_gradient);
  w.run = [=](const Run& r) {
    const auto product = [&](ValueId d, ValueId in, ParameterValues made) {
      r.ops().matmul(r.stream(),
                     {r[d], r[in], r[made.gradient], Transposed::yes, Transposed::no, r.store(made.gradient)});
    };
    product(dy, v.context, v.w_out);
    product(v.dkv, v.c_norm, v.w_kv);
    if (low_rank) product(v.dq, v.a_norm, v.w_q);
    product(v.ddown, v.xn, v.w_down);
    if (indexer.weight_gradient) indexer.weight_gradient.run(r);
  };
  return v.y;
}

}  // namespace weft
