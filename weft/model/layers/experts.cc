// `E`: y = x + sum over the k chosen experts of expert(norm(x)) (+ shared(norm(x))).
#include "weft/model/layers/experts.h"

#include "weft/device/operations.h"

namespace weft {

namespace {

// Like join below, with W_up after the sum over choices.
ValueId add_latent_join(ModuleBuilder& b, const ExpertsSpec& spec, const Routing& v, ValueId x, ValueId y,
                        ValueId shared_out) {
  const std::int64_t T = b.tokens(), H = b.config().hidden, W = spec.latent, k = spec.router.k;
  const bool shared = spec.shared_ffn > 0;
  const ValueId dy = b.gradient_of(y);
  const ParameterValues up =
      b.parameter("latent_up_weight", {H, W}, {b.part(Role::latent_up, {H, W}, b.residual_init())});
  const ValueId sum = b.activation("sum", b.compute(), {T, W});
  const ValueId dsum = b.scratch("d(sum)", b.compute(), {T, W});

  Piece& p = b.piece("join");
  p.forward.uses = {{x}, {v.out}, {v.row_of_slot}, {up.value}, {sum, Access::write}, {y, Access::write}};
  if (shared) p.forward.uses.push_back({shared_out});
  const auto add = [=](const Run& r) { r.ops().sum_rows(r.stream(), {r[v.out], r[v.row_of_slot], r[sum]}); };
  const auto lift = [=](const Run& r) {
    Matmul raise{r[sum], r[up.value], r[y], Transposed::no, Transposed::yes};
    raise.residual = r[x];
    r.ops().matmul(r.stream(), raise);
    if (shared) r.ops().add(r.stream(), {r[y], r[shared_out], r[y]});
  };
  p.forward.run = [=](const Run& r) {
    add(r);
    lift(r);
  };
  p.parts = {{"sum", 0, {{{v.out}, {v.row_of_slot}, {sum, Access::write}}, add}},
             {"out", 0, {{{x}, {sum}, {up.value}, {y, Access::write}}, lift}}};
  if (shared) p.parts.back().code.uses.push_back({shared_out});
  p.backward = {
      {{dy}, {up.value}, {v.slot_of_row}, {v.row_of_slot}, {v.in_use}, {dsum, Access::write}, {v.dout, Access::write}},
      [=](const Run& r) {
        r.ops().matmul(r.stream(), {r[dy], r[up.value], r[dsum]});
        r.ops().gather_rows(r.stream(), {r[dsum], r[v.slot_of_row], r[v.dout], r[v.in_use], k, r[v.row_of_slot]});
      }};
  p.weight_gradient = {{{dy}, {sum}, {up.gradient, Access::add}}, [=](const Run& r) {
                         r.ops().matmul(r.stream(), {r[dy], r[sum], r[up.gradient], Transposed::yes, Transposed::no,
                                                     r.store(up.gradient)});
                       }};
  return y;
}

}  // namespace

ValueId add_experts(ModuleBuilder& b, const ExpertsSpec& spec, ValueId x) {
  const std::int64_t k = spec.router.k;
  const bool shared = spec.shared_ffn > 0;
  const ValueId y = b.activation("y", b.compute(), {b.tokens(), b.config().hidden});
  const ValueId dy = b.gradient_of(y);

  Routing v;
  add_route(b, spec, x, dy, v);
  ValueId shared_out;
  const auto add_shared = [&] {
    if (shared) shared_out = add_shared_expert(b, spec, v, dy);
  };
  if (const Layout& layout = b.options().layout; layout.divides(layout.expert_ranks())) {
    add_exchanged_experts(b, spec, v, add_shared);
  } else {
    add_shared();
    add_expert_mlp(b, spec,
                   {v.counts, v.offsets, v.in_use, v.rows, v.row_weights, v.drows, v.drow_weights, v.out, v.dout, v.R,
                    0, spec.experts});
  }

  if (spec.latent > 0) return add_latent_join(b, spec, v, x, y, shared_out);
  // The sum over choices; rows are already weighted.
  Piece& p = b.piece("join");
  p.forward.uses = {{x}, {v.out}, {v.row_of_slot}, {y, Access::write}};
  if (shared) p.forward.uses.push_back({shared_out});
  p.forward.run = [=](const Run& r) {
    r.ops().sum_rows(r.stream(), {r[v.out], r[v.row_of_slot], r[y], r[x], shared ? r[shared_out] : Tensor{}});
  };
  p.backward = {
      {{dy}, {v.slot_of_row}, {v.row_of_slot}, {v.in_use}, {v.dout, Access::write}}, [=](const Run& r) {
        r.ops().gather_rows(r.stream(), {r[dy], r[v.slot_of_row], r[v.dout], r[v.in_use], k, r[v.row_of_slot]});
      }};
  return y;
}

}  // namespace weft
