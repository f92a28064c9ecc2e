// The indexer's scores: score_ij = scale sum_h w_ih relu(q_ih . k_j), n heads of d, scale = (n d)^-1/2.
//   q = rope(W_q q_latent)     [k | w] = W_kw xn     k = rope(layer_norm(k)), one head
// Rotary turns the first elements of a head, in halves. Without a loss nothing but the choice is kept, and the
// parameters are not trained.
#include "weft/model/layers/indexer.h"

#include <cmath>

#include "weft/device/operations.h"

namespace weft {

namespace {

struct Values {
  ValueId w_q, w_kw, norm, norm_bias;  // weights
  ParameterValues dw_q, dw_kw, dnorm, dnorm_bias;
  ValueId q, kw, k, mean, inverse, keys;
  ValueId dq, dkw, dk, scratch;
};

// Where the loss is off, a weight without a gradient.
ValueId add_weight(ModuleBuilder& b, bool trained, const char* name, const Shape& shape,
                   std::vector<ParameterPart> parts, ParameterValues& made) {
  if (!trained) return b.frozen_parameter(name, shape, std::move(parts), b.compute());
  made = b.parameter(name, shape, std::move(parts));
  return made.value;
}

}  // namespace

IndexerParts add_indexer(ModuleBuilder& b, const IndexerSpec& spec, ValueId xn, ValueId q_latent,
                         const RotaryTables& rope, std::function<Attention(const Run&)> attention) {
  const std::int64_t T = b.tokens(), H = b.config().hidden, length = b.options().length;
  const std::int64_t n = spec.heads, d = spec.dim, K = std::min(spec.topk, length);
  const std::int64_t rank = b.module().value(q_latent).shape[1];
  const DType compute = b.compute(), acc = b.accumulate();
  const bool trained = spec.loss_factor > 0;
  const double eps = spec.norm_epsilon, scale = 1 / std::sqrt(static_cast<double>(n * d));
  const double factor = spec.loss_factor;

  Values v;
  v.w_q = add_weight(b, trained, "indexer_q_weight", {n * d, rank},
                     {b.part(Role::indexer_q, {n * d, rank}, b.matrix_init())}, v.dw_q);
  v.w_kw = add_weight(
      b, trained, "indexer_kw_weight", {d + n, H},
      {b.part(Role::indexer_k, {d, H}, b.matrix_init()), b.part(Role::indexer_weights, {n, H}, b.matrix_init())},
      v.dw_kw);
  v.norm = add_weight(b, trained, "indexer_norm_weight", {d},
                      {b.part(Role::indexer_norm, {d}, {Init::Kind::constant, 1})}, v.dnorm);
  v.norm_bias = add_weight(b, trained, "indexer_norm_bias", {d},
                           {b.part(Role::indexer_norm_bias, {d}, {Init::Kind::constant, 0})}, v.dnorm_bias);
  const auto kept = [&](const char* name, DType dtype, const Shape& shape) {
    return trained ? b.activation(name, dtype, shape) : b.scratch(name, dtype, shape);
  };
  v.q = kept("indexer_q", compute, {T, n * d});
  v.kw = kept("indexer_kw", compute, {T, d + n});
  v.k = kept("indexer_k", compute, {T, d});
  v.mean = kept("indexer_mean", acc, {T});
  v.inverse = kept("indexer_inverse", acc, {T});
  v.keys = b.activation("keys", DType::i32, {T, K});

  const auto turn = [=](const Run& r, const Tensor& x, std::int64_t heads, bool inverse) {
    Rotary turned{x, x, r[rope.cosine], r[rope.sine], {}, heads, d, rope.width, length};
    turned.inverse = inverse;
    r.ops().rotary(r.stream(), turned);
  };
  const auto indexer_of = [=](const Run& r) {
    return Indexer{r[v.q], r[v.k], r[v.kw].slice_columns(d, n), n, d, scale};
  };

  IndexerParts parts;
  parts.keys = v.keys;
  parts.forward.uses = {{xn}, {q_latent}, {v.w_q}, {v.w_kw}, {v.norm}, {v.norm_bias}, {rope.cosine}, {rope.sine}};
  for (ValueId made : {v.q, v.kw, v.k, v.mean, v.inverse, v.keys}) parts.forward.uses.push_back({made, Access::write});
  parts.forward.run = [=](const Run& r) {
    r.ops().matmul(r.stream(), {r[q_latent], r[v.w_q], r[v.q], Transposed::no, Transposed::yes});
    r.ops().matmul(r.stream(), {r[xn], r[v.w_kw], r[v.kw], Transposed::no, Transposed::yes});
    r.ops().layer_norm(r.stream(),
                       {r[v.kw].slice_columns(0, d), r[v.norm], r[v.norm_bias], r[v.k], r[v.mean], r[v.inverse], eps});
    turn(r, r[v.q], n, false);
    turn(r, r[v.k], 1, false);
    ChooseKeys choice{indexer_of(r), r[v.keys]};
    choice.length = length;
    r.ops().choose_keys(r.stream(), choice);
  };
  if (!trained) return parts;

  Module& m = b.module();
  if (!m.indexer_loss.valid()) {
    Value loss{"indexer_loss", ValueKind::step, acc, {1}};
    loss.read_by_host = true;
    m.indexer_loss = b.value(std::move(loss));
  }
  const ValueId loss = m.indexer_loss, step = m.step_values;
  v.dq = b.activation("d(indexer_q)", compute, {T, n * d});
  v.dkw = b.activation("d(indexer_kw)", compute, {T, d + n});
  v.dk = b.scratch("d(indexer_k)", compute, {T, d});
  v.scratch = b.scratch("indexer_scratch", acc, {T, K + 1});
  parts.backward.uses = {{v.q},    {v.kw},   {v.k},         {v.mean},    {v.inverse},
                         {v.keys}, {v.norm}, {rope.cosine}, {rope.sine}, {step}};
  for (ValueId made : {v.dq, v.dkw, v.dk, v.scratch}) parts.backward.uses.push_back({made, Access::write});
  for (ValueId made : {loss, v.dnorm.gradient, v.dnorm_bias.gradient})
    parts.backward.uses.push_back({made, Access::add});
  parts.backward.run = [=](const Run& r) {
    const Tensor dkw = r[v.dkw], raw = r[v.kw].slice_columns(0, d);
    IndexerLoss own{indexer_of(r), {attention(r), r[v.keys]}, r[step].slice_rows(StepValues::loss_scale, 1), r[loss]};
    own.dq = r[v.dq], own.dk = r[v.dk], own.dw = dkw.slice_columns(d, n), own.scratch = r[v.scratch];
    own.factor = factor, own.store = r.store(loss);
    r.ops().indexer_loss(r.stream(), own);
    turn(r, r[v.dq], n, true);
    turn(r, r[v.dk], 1, true);
    r.ops().layer_norm_weight_gradient(
        r.stream(), {raw, r[v.mean], r[v.inverse], r[v.dk], r[v.dnorm.gradient], r[v.dnorm_bias.gradient],
                     r.store(v.dnorm.gradient), r.store(v.dnorm_bias.gradient)});
    r.ops().layer_norm_backward(r.stream(),
                                {raw, r[v.norm], r[v.mean], r[v.inverse], r[v.dk], dkw.slice_columns(0, d)});
  };
  parts.weight_gradient.uses = {
      {v.dq}, {q_latent}, {v.dkw}, {xn}, {v.dw_q.gradient, Access::add}, {v.dw_kw.gradient, Access::add}};
  parts.weight_gradient.run = [=](const Run& r) {
    const auto product = [&](ValueId dy, ValueId x, ParameterValues w) {
      r.ops().matmul(r.stream(), {r[dy], r[x], r[w.gradient], Transposed::yes, Transposed::no, r.store(w.gradient)});
    };
    product(v.dq, q_latent, v.dw_q);
    product(v.dkw, xn, v.dw_kw);
  };
  return parts;
}

}  // namespace weft
