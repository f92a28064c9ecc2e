// `E`: y = x + sum over the k chosen experts of expert(norm(x)) (+ shared(norm(x))).
//
// Pieces: route (norm, router, rows sorted by expert), experts (one grouped MLP; the router's weight multiplies the
// activation before the second product, so that the sum over choices needs no weights), shared (free to run beside
// them), join (sum over choices, residual). T tokens, H hidden, R = rows, E experts of width F.
#include "weft/model/layers/layers.h"

namespace weft {

namespace {

struct Routing {  // of one micro-batch, in device memory
  ValueId xn, inverse, scores, weights, indices, counts, offsets, row_of_slot, slot_of_row, in_use, rows, row_weights;
  ValueId drows, drow_weights, dxn_shared;
  std::int64_t R = 0;
  Groups groups(const Run& r) const { return {r[counts], r[offsets]}; }
};

// Every expert's rows may be padded to the alignment.
std::int64_t row_bound(std::int64_t slots, std::int64_t experts, std::int64_t alignment) {
  return slots + (alignment > 1 ? experts * (alignment - 1) : 0);
}

void add_route(ModuleBuilder& b, const ExpertsSpec& spec, ValueId x, ValueId dy, Routing& v) {
  const std::int64_t T = b.tokens(), H = b.config().hidden, E = spec.experts, k = spec.router.k;
  const DType compute = b.compute(), acc = b.accumulate();
  const double eps = b.config().norm_epsilon;
  const bool zero_centred = b.config().zero_centred_norms, shared = spec.shared_ffn > 0;
  const std::int64_t alignment = b.options().row_alignment;
  const RouterSpec router = spec.router;
  v.R = row_bound(T * k, E, alignment);

  const ParameterValues norm = b.norm_weight("norm", Role::norm, H);
  const ParameterValues w = b.parameter("router", {E, H}, {b.part(Role::router, {E, H}, b.matrix_init())});
  b.tensor(w).accumulate_dtype = true;
  b.module().values[w.value.index()].dtype = acc;

  v.xn = b.activation("xn", compute, {T, H});
  v.inverse = b.activation("inverse", acc, {T});
  v.scores = b.activation("scores", acc, {T, E});
  v.weights = b.activation("weights", acc, {T, k});
  v.indices = b.activation("indices", DType::i32, {T, k});
  v.counts = b.activation("counts", DType::i32, {E});
  v.offsets = b.activation("offsets", DType::i32, {E + 1});
  v.row_of_slot = b.activation("row_of_slot", DType::i32, {T, k});
  v.slot_of_row = b.activation("slot_of_row", DType::i32, {v.R});
  v.in_use = b.activation("rows_in_use", DType::i32, {1});
  v.rows = b.activation("rows", compute, {v.R, H});
  v.row_weights = b.activation("row_weights", acc, {v.R, 1});
  v.drows = b.activation("d(rows)", compute, {v.R, H});
  v.drow_weights = b.activation("d(row_weights)", acc, {v.R, 1});
  if (shared) v.dxn_shared = b.activation("d(xn)_shared", compute, {T, H});
  const ValueId logits = b.scratch("logits", acc, {T, E});
  const ValueId dweights = b.scratch("d(weights)", acc, {T, k});
  const ValueId dlogits = b.activation("d(logits)", acc, {T, E});
  const ValueId dxn = b.scratch("d(xn)", compute, {T, H});
  const ValueId dx = b.gradient_of(x);

  Piece& p = b.piece("route");
  p.forward.uses = {{x}, {norm.value}, {w.value}};
  for (ValueId out : {v.xn, v.inverse, logits, v.scores, v.weights, v.indices, v.counts, v.offsets, v.row_of_slot,
                      v.slot_of_row, v.in_use, v.rows, v.row_weights})
    p.forward.uses.push_back({out, Access::write});
  p.forward.run = [=](const Run& r) {
    r.ops().rms_norm(r.stream(), {r[x], r[norm.value], r[v.xn], r[v.inverse], 1, eps, zero_centred});
    r.ops().matmul(r.stream(), {r[v.xn], r[w.value], r[logits], Transposed::no, Transposed::yes});
    r.ops().router(r.stream(), {router, r[logits], {}, r[v.scores], r[v.weights], r[v.indices]});
    r.ops().route_rows(r.stream(), {r[v.indices], r[v.counts], r[v.offsets], r[v.row_of_slot], r[v.slot_of_row],
                                    r[v.in_use], alignment});
    r.ops().gather_rows(r.stream(), {r[v.xn], r[v.slot_of_row], r[v.rows], r[v.in_use], k});
    r.ops().gather_rows(r.stream(),
                        {r[v.weights].reshape({T * k, 1}), r[v.slot_of_row], r[v.row_weights], r[v.in_use], 1});
  };

  p.backward.uses = {{dy},
                     {x},
                     {v.inverse},
                     {norm.value},
                     {w.value},
                     {v.scores},
                     {v.weights},
                     {v.indices},
                     {v.row_of_slot},
                     {v.drows},
                     {v.drow_weights},
                     {dweights, Access::write},
                     {dlogits, Access::write},
                     {dxn, Access::write},
                     {dx, Access::write},
                     {norm.gradient, Access::add}};
  if (shared) p.backward.uses.push_back({v.dxn_shared});
  p.backward.run = [=](const Run& r) {
    const Tensor slots = r[v.row_of_slot];
    r.ops().sum_rows(r.stream(), {r[v.drows], slots, r[dxn], {}, shared ? r[v.dxn_shared] : Tensor{}});
    r.ops().gather_rows(r.stream(),
                        {r[v.drow_weights], slots.reshape({T * k}), r[dweights].reshape({T * k, 1}), {}, 1});
    r.ops().router_backward(r.stream(), {router, r[v.scores], r[v.weights], r[v.indices], r[dweights], r[dlogits]});
    r.ops().matmul(r.stream(), {r[dlogits], r[w.value], r[dxn], Transposed::no, Transposed::no, Store::add});
    r.ops().rms_norm_weight_gradient(r.stream(),
                                     {r[x], r[v.inverse], r[dxn], r[norm.gradient], 1, r.store(norm.gradient)});
    r.ops().rms_norm_backward(r.stream(), {r[x], r[norm.value], r[v.inverse], r[dxn], r[dx], r[dy], 1, zero_centred});
  };

  p.weight_gradient = {{{dlogits}, {v.xn}, {w.gradient, Access::add}}, [=](const Run& r) {
                         r.ops().matmul(r.stream(), {r[dlogits], r[v.xn], r[w.gradient], Transposed::yes,
                                                     Transposed::no, r.store(w.gradient)});
                       }};
}

struct ExpertsOut {
  ValueId out, dout;  // [R, H], rows sorted by expert
};

ExpertsOut add_grouped_mlp(ModuleBuilder& b, const ExpertsSpec& spec, const Routing& v) {
  const std::int64_t H = b.config().hidden, E = spec.experts, F = spec.ffn, R = v.R;
  const bool gated = spec.activation.gated();
  const std::int64_t width = gated ? 2 * F : F;
  const DType compute = b.compute();
  const ActivationSpec act = spec.activation;

  std::vector<ParameterPart> up_parts, down_parts;
  for (int e = 0; e < static_cast<int>(E); ++e) {
    if (gated) up_parts.push_back(b.part(Role::gate, {F, H}, b.matrix_init(), e));
    up_parts.push_back(b.part(Role::up, {F, H}, b.matrix_init(), e));
    down_parts.push_back(b.part(Role::down, {H, F}, b.residual_init(), e));
  }
  const ParameterValues w1 = b.parameter("up", {E, width, H}, up_parts);
  const ParameterValues w2 = b.parameter("down", {E, H, F}, down_parts);

  const ValueId h = b.activation("h", compute, {R, width});
  const ValueId a = b.activation("a", compute, {R, F});
  const ExpertsOut o{b.activation("out", compute, {R, H}), b.activation("d(out)", compute, {R, H})};
  const ValueId dh = b.activation("d(h)", compute, {R, width});
  const ValueId da = b.scratch("d(a)", compute, {R, F});

  Piece& p = b.piece("experts");
  p.forward.uses = {{v.rows},   {v.row_weights}, {v.counts},         {v.offsets},        {v.in_use},
                    {w1.value}, {w2.value},      {h, Access::write}, {a, Access::write}, {o.out, Access::write}};
  p.forward.run = [=](const Run& r) {
    using Mode = GroupedMatmul::Mode;
    r.ops().grouped_matmul(r.stream(), {Mode::forward, r[v.rows], r[w1.value], r[h], v.groups(r)});
    r.ops().activation(r.stream(), {act, r[h], r[a], r[v.row_weights], r[v.in_use]});
    r.ops().grouped_matmul(r.stream(), {Mode::forward, r[a], r[w2.value], r[o.out], v.groups(r)});
  };

  p.backward.uses = {{o.dout},
                     {h},
                     {v.row_weights},
                     {v.counts},
                     {v.offsets},
                     {v.in_use},
                     {w1.value},
                     {w2.value},
                     {da, Access::write},
                     {dh, Access::write},
                     {v.drows, Access::write},
                     {v.drow_weights, Access::write}};
  p.backward.run = [=](const Run& r) {
    using Mode = GroupedMatmul::Mode;
    r.ops().grouped_matmul(r.stream(), {Mode::input_gradient, r[da], r[w2.value], r[o.dout], v.groups(r)});
    r.ops().activation_backward(r.stream(),
                                {act, r[h], r[v.row_weights], r[da], r[dh], r[v.drow_weights], r[v.in_use]});
    r.ops().grouped_matmul(r.stream(), {Mode::input_gradient, r[v.drows], r[w1.value], r[dh], v.groups(r)});
  };

  p.weight_gradient.uses = {
      {o.dout}, {a}, {dh}, {v.rows}, {v.counts}, {v.offsets}, {w2.gradient, Access::add}, {w1.gradient, Access::add}};
  p.weight_gradient.run = [=](const Run& r) {
    using Mode = GroupedMatmul::Mode;
    r.ops().grouped_matmul(r.stream(),
                           {Mode::weight_gradient, r[a], r[w2.gradient], r[o.dout], v.groups(r), r.store(w2.gradient)});
    r.ops().grouped_matmul(
        r.stream(), {Mode::weight_gradient, r[v.rows], r[w1.gradient], r[dh], v.groups(r), r.store(w1.gradient)});
  };
  return o;
}

// The shared expert: every token takes it, unweighted.
ValueId add_shared(ModuleBuilder& b, const ExpertsSpec& spec, const Routing& v, ValueId dy) {
  const std::int64_t T = b.tokens(), H = b.config().hidden, F = spec.shared_ffn;
  const bool gated = spec.activation.gated();
  const std::int64_t width = gated ? 2 * F : F;
  const DType compute = b.compute();
  const ActivationSpec act = spec.activation;

  std::vector<ParameterPart> parts;
  if (gated) parts.push_back(b.part(Role::shared_gate, {F, H}, b.matrix_init()));
  parts.push_back(b.part(Role::shared_up, {F, H}, b.matrix_init()));
  const ParameterValues w1 = b.parameter("shared_up", {width, H}, parts);
  const ParameterValues w2 = b.parameter("shared_down", {H, F}, {b.part(Role::shared_down, {H, F}, b.residual_init())});

  const ValueId h = b.activation("shared_h", compute, {T, width});
  const ValueId a = b.activation("shared_a", compute, {T, F});
  const ValueId out = b.activation("shared_out", compute, {T, H});
  const ValueId dh = b.activation("d(shared_h)", compute, {T, width});
  const ValueId da = b.scratch("d(shared_a)", compute, {T, F});

  Piece& p = b.piece("shared");
  p.forward = {{{v.xn}, {w1.value}, {w2.value}, {h, Access::write}, {a, Access::write}, {out, Access::write}},
               [=](const Run& r) {
                 r.ops().matmul(r.stream(), {r[v.xn], r[w1.value], r[h], Transposed::no, Transposed::yes});
                 r.ops().activation(r.stream(), {act, r[h], r[a]});
                 r.ops().matmul(r.stream(), {r[a], r[w2.value], r[out], Transposed::no, Transposed::yes});
               }};
  p.backward = {
      {{dy}, {h}, {w1.value}, {w2.value}, {da, Access::write}, {dh, Access::write}, {v.dxn_shared, Access::write}},
      [=](const Run& r) {
        r.ops().matmul(r.stream(), {r[dy], r[w2.value], r[da]});
        r.ops().activation_backward(r.stream(), {act, r[h], {}, r[da], r[dh]});
        r.ops().matmul(r.stream(), {r[dh], r[w1.value], r[v.dxn_shared]});
      }};
  p.weight_gradient = {
      {{dy}, {a}, {dh}, {v.xn}, {w2.gradient, Access::add}, {w1.gradient, Access::add}}, [=](const Run& r) {
        const auto store = [&](ParameterValues parameter) { return r.store(parameter.gradient); };
        r.ops().matmul(r.stream(), {r[dy], r[a], r[w2.gradient], Transposed::yes, Transposed::no, store(w2)});
        r.ops().matmul(r.stream(), {r[dh], r[v.xn], r[w1.gradient], Transposed::yes, Transposed::no, store(w1)});
      }};
  return out;
}

}  // namespace

ValueId add_experts(ModuleBuilder& b, const ExpertsSpec& spec, ValueId x) {
  const std::int64_t k = spec.router.k;
  const bool shared = spec.shared_ffn > 0;
  const ValueId y = b.activation("y", b.compute(), {b.tokens(), b.config().hidden});
  const ValueId dy = b.gradient_of(y);

  Routing v;
  add_route(b, spec, x, dy, v);
  const ExpertsOut o = add_grouped_mlp(b, spec, v);
  const ValueId shared_out = shared ? add_shared(b, spec, v, dy) : ValueId{};

  Piece& p = b.piece("join");
  p.forward.uses = {{x}, {o.out}, {v.row_of_slot}, {y, Access::write}};
  if (shared) p.forward.uses.push_back({shared_out});
  p.forward.run = [=](const Run& r) {
    r.ops().sum_rows(r.stream(), {r[o.out], r[v.row_of_slot], r[y], r[x], shared ? r[shared_out] : Tensor{}});
  };
  p.backward = {{{dy}, {v.slot_of_row}, {v.in_use}, {o.dout, Access::write}}, [=](const Run& r) {
                  r.ops().gather_rows(r.stream(), {r[dy], r[v.slot_of_row], r[o.dout], r[v.in_use], k});
                }};
  return y;
}

}  // namespace weft
