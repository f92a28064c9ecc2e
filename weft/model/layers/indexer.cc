// The indexer's scores: score_ij = scale sum_h w_ih relu(q_ih . k_j), n heads of d, scale = (n d)^-1/2.
//   q = rope(W_q q_latent)     [k | w] = W_kw xn     k = rope(layer_norm(k)), one head
// Rotation applies to the first elements of a head, in the half-split style. Without a loss only the chosen keys are
// kept, and the parameters are not trained.
#include "weft/model/layers/indexer.h"

#include <cmath>

#include "weft/device/operations.h"
#include "weft/model/layers/tensor_transfers.h"
#include "weft/model/layers/uses.h"
#include "weft/model/layers/weighted.h"

namespace weft {

namespace {

struct KeyChooser {
  ValueId xn, xn_of_weights, q_latent, boundaries;
  ValueId product;  // valid: kw is columns of it, from `column` on
  std::int64_t column = 0;
  RotaryTables rope;
  std::int64_t n = 0, d = 0, length = 0;
  double scale = 0, epsilon = 0, factor = 0;  // of the scores, the norm, the loss
  bool trained = false;

  Linear w_q, w_kw;  // without gradients unless trained
  ParameterValues norm, norm_bias;
  ValueId q, kw, k, mean, inverse, keys;
  ValueId dq, dkw, dk, scratch, loss, scales;
  // Of several tensor ranks: p over the heads here, [T, K]; summed over ranks, of all queries or of those of this rank.
  ValueId means, all_means;
  TensorRanks ranks;
  Range queries;  // of this rank
  std::int64_t heads = 0;

  bool makes_kw() const { return !product.valid(); }
  Tensor both(const Run& r) const { return makes_kw() ? r[kw] : r[product].slice_columns(column, d + n); }
  Indexer scores(const Run& r) const { return {r[q], r[k], both(r).slice_columns(d, n), n, d, scale}; }
  Tensor raw_k(const Run& r) const { return both(r).slice_columns(0, d); }
};

std::vector<ParameterPart> kw_parts(const ModuleBuilder& b, std::int64_t d, std::int64_t n) {
  const std::int64_t H = b.config().hidden;
  return {b.part(Role::indexer_k, {d, H}, b.matrix_init()), b.part(Role::indexer_weights, {n, H}, b.matrix_init())};
}

void add_parameters(ModuleBuilder& b, KeyChooser& v) {
  const std::int64_t H = b.config().hidden, n = v.n, d = v.d, rank = b.module().value(v.q_latent).shape[1];
  const auto weight = [&](const char* name, const Shape& shape, std::vector<ParameterPart> parts) {
    return v.trained ? b.parameter(name, shape, std::move(parts))
                     : ParameterValues{b.frozen_parameter(name, shape, std::move(parts), b.compute()), {}};
  };
  v.w_q = {weight("indexer_q_weight", {n * d, rank}, {b.part(Role::indexer_q, {n * d, rank}, b.matrix_init())})};
  if (v.makes_kw()) v.w_kw = {weight("indexer_kw_weight", {d + n, H}, kw_parts(b, d, n))};
  v.norm = weight("indexer_norm_weight", {d}, {b.part(Role::indexer_norm, {d}, {Init::Kind::constant, 1})});
  v.norm_bias = weight("indexer_norm_bias", {d}, {b.part(Role::indexer_norm_bias, {d}, {Init::Kind::constant, 0})});
}

void add_forward_values(ModuleBuilder& b, std::int64_t K, KeyChooser& v) {
  const std::int64_t T = b.module().value(v.q_latent).shape[0];
  const DType compute = b.compute(), acc = b.accumulate();
  const auto kept = [&](const char* name, DType dtype, const Shape& shape) {
    return v.trained ? b.activation(name, dtype, shape) : b.scratch(name, dtype, shape);
  };
  v.q = kept("indexer_q", compute, {T, v.n * v.d});
  if (v.makes_kw()) v.kw = kept("indexer_kw", compute, {T, v.d + v.n});
  v.k = kept("indexer_k", compute, {T, v.d});
  v.mean = kept("indexer_mean", acc, {T});
  v.inverse = kept("indexer_inverse", acc, {T});
  v.keys = b.activation("keys", DType::i32, {T, K});
}

void add_backward_values(ModuleBuilder& b, std::int64_t K, KeyChooser& v) {
  const std::int64_t T = b.tokens();
  const DType compute = b.compute(), acc = b.accumulate();
  Module& m = b.module();
  if (!m.indexer_loss.valid()) {
    Value loss{"indexer_loss", ValueKind::step, acc, {1}};
    loss.read_by_host = true;
    loss.summed_over = b.summed_over_tokens();
    m.indexer_loss = b.value(std::move(loss));
  }
  v.loss = m.indexer_loss;
  v.scales = m.loss_scales;
  v.dq = b.activation("d(indexer_q)", compute, {T, v.n * v.d});
  v.dkw = b.activation("d(indexer_kw)", compute, {T, v.d + v.n});
  v.dk = b.scratch("d(indexer_k)", compute, {T, v.d});
  v.scratch = b.scratch("indexer_scratch", acc, {T, K + 1});
  if (!v.ranks.divide()) return;
  v.means = b.activation("attention_means", acc, {T, K});
  v.all_means = b.activation("all_attention_means", acc, {v.ranks.sequence ? v.queries.count : T, K});
  m.values[v.all_means.index()].summed_over = v.ranks.group;
}

void rotate(const Run& r, const KeyChooser& v, const Tensor& x, std::int64_t heads, bool inverse) {
  Rotary rotary{x, x, r[v.rope.cosine], r[v.rope.sine], given(r, v.rope.positions), heads, v.d, v.rope.width, v.length};
  rotary.inverse = inverse;
  r.ops().rotary(r.stream(), rotary);
}

void run_forward(const Run& r, const KeyChooser& v) {
  v.w_q.forward(r, r[v.q_latent], r[v.q]);
  if (v.makes_kw()) v.w_kw.forward(r, r[v.xn], r[v.kw]);
  r.ops().layer_norm(r.stream(),
                     {v.raw_k(r), r[v.norm.value], r[v.norm_bias.value], r[v.k], r[v.mean], r[v.inverse], v.epsilon});
  rotate(r, v, r[v.q], v.n, false);
  rotate(r, v, r[v.k], 1, false);
  ChooseKeys choice{v.scores(r), r[v.keys], given(r, v.boundaries)};
  choice.length = v.length;
  r.ops().choose_keys(r.stream(), choice);
}

void run_backward(const Run& r, const KeyChooser& v, const Attention& attention) {
  const Tensor dkw = r[v.dkw], raw = v.raw_k(r);
  IndexerLoss own{v.scores(r), {attention, r[v.keys]}, r[v.scales].slice_rows(0, 1), r[v.loss]};
  own.dq = r[v.dq], own.dk = r[v.dk], own.dw = dkw.slice_columns(v.d, v.n), own.scratch = r[v.scratch];
  own.factor = v.factor, own.store = r.store(v.loss);
  if (v.ranks.divide()) {
    const Tensor means = r[v.all_means];
    own.means = v.ranks.sequence ? means : means.slice_rows(v.queries.first, v.queries.count);
    own.first = v.queries.first, own.queries = v.queries.count;
  }
  r.ops().indexer_loss(r.stream(), own);
  rotate(r, v, r[v.dq], v.n, true);
  rotate(r, v, r[v.dk], 1, true);
  r.ops().layer_norm_weight_gradient(
      r.stream(), {raw, r[v.mean], r[v.inverse], r[v.dk], r[v.norm.gradient], r[v.norm_bias.gradient],
                   r.store(v.norm.gradient), r.store(v.norm_bias.gradient)});
  r.ops().layer_norm_backward(r.stream(),
                              {raw, r[v.norm.value], r[v.mean], r[v.inverse], r[v.dk], dkw.slice_columns(0, v.d)});
}

PieceCode forward(const KeyChooser& v) {
  PieceCode f;
  reads(f, {v.q_latent, v.w_q.value, v.norm.value, v.norm_bias.value, v.rope.cosine, v.rope.sine, v.rope.positions,
            v.boundaries, v.product});
  if (v.makes_kw()) {
    reads(f, {v.xn, v.w_kw.value});
    writes(f, {v.kw});
  }
  writes(f, {v.q, v.k, v.mean, v.inverse, v.keys});
  f.run = [v](const Run& r) { run_forward(r, v); };
  return f;
}

PieceCode backward(const KeyChooser& v, std::function<Attention(const Run&)> attention) {
  PieceCode g;
  reads(g, {v.q, v.kw, v.k, v.mean, v.inverse, v.keys, v.norm.value, v.rope.cosine, v.rope.sine, v.rope.positions,
            v.boundaries, v.scales});
  reads(g, {v.all_means});
  writes(g, {v.dq, v.dkw, v.dk, v.scratch});
  adds_to(g, {v.loss, v.norm.gradient, v.norm_bias.gradient});
  g.run = [v, attention = std::move(attention)](const Run& r) { run_backward(r, v, attention(r)); };
  return g;
}

PieceCode means(const KeyChooser& v, std::function<Attention(const Run&)> attention) {
  PieceCode m;
  reads(m, {v.keys});
  writes(m, {v.means});
  m.run = [v, attention = std::move(attention)](const Run& r) {
    r.ops().attention_means(r.stream(), {{attention(r), r[v.keys]}, r[v.means], v.heads});
  };
  return m;
}

PieceCode weight_gradient(const KeyChooser& v) {
  PieceCode w;
  reads(w, {v.dq, v.q_latent, v.dkw, v.xn_of_weights});
  adds_to(w, {v.w_q.gradient, v.w_kw.gradient});
  w.run = [v](const Run& r) {
    v.w_q.weight_gradient(r, v.dq, v.q_latent);
    v.w_kw.weight_gradient(r, v.dkw, v.xn_of_weights);
  };
  return w;
}

}  // namespace

ValueId add_indexer_weight(ModuleBuilder& b, const IndexerSpec& spec) {
  return b.frozen_parameter("indexer_kw_weight", {spec.dim + spec.heads, b.config().hidden},
                            kw_parts(b, spec.dim, spec.heads), b.compute());
}

IndexerParts add_indexer(ModuleBuilder& b, const IndexerSpec& spec, IndexerInput xn, ValueId q_latent,
                         const RotaryTables& rope, std::int64_t heads, std::function<Attention(const Run&)> attention) {
  const std::int64_t K = std::min(spec.topk, b.options().length);
  KeyChooser v;
  v.xn = xn.forward;
  v.xn_of_weights = xn.weights;
  v.q_latent = q_latent;
  v.product = xn.product;
  v.column = xn.column;
  v.boundaries = b.module().boundaries;
  v.rope = rope;
  v.n = spec.heads;
  v.d = spec.dim;
  v.length = b.options().length;
  v.scale = 1 / std::sqrt(static_cast<double>(spec.heads * spec.dim));
  v.epsilon = spec.norm_epsilon;
  v.factor = spec.loss_factor;
  v.trained = spec.loss_factor > 0;
  v.ranks = b.tensor_ranks();
  v.queries = v.ranks.part_of(b.tokens());
  v.heads = heads;
  add_parameters(b, v);
  add_forward_values(b, K, v);
  if (!v.trained) return {v.keys, forward(v), {}, {}, {}, {}};
  add_backward_values(b, K, v);
  IndexerParts parts{v.keys, forward(v), backward(v, attention), weight_gradient(v), {}, {}};
  if (v.ranks.divide()) {
    parts.means = means(v, std::move(attention));
    parts.sum_of_means =
        v.ranks.sequence ? scattered(v.ranks, v.means, v.all_means) : summed(v.ranks, v.means, v.all_means);
  }
  return parts;
}

}  // namespace weft
