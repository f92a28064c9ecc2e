// `E`: y = x + sum over the k chosen experts of expert(norm(x)) (+ shared(norm(x))).
#include "weft/model/layers/experts.h"

#include "weft/device/operations.h"
#include "weft/model/layers/tensor_transfers.h"

namespace weft {

namespace {

// Like join below, with W_up after the sum over choices.
void add_latent_join(ModuleBuilder& b, const ExpertsSpec& spec, const Routing& v, ValueId x, ValueId y, ValueId dy,
                     ValueId shared_out) {
  const RoutedTokens tokens = routed_tokens(b);
  const std::int64_t T = tokens.rows.count, H = b.config().hidden, W = spec.latent, k = spec.router.k * v.copies;
  const bool shared = spec.shared_ffn > 0;
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
    raise.residual = tokens.of(r[x]);
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
        r.ops().matmul(r.stream(), {tokens.of(r[dy]), r[up.value], r[dsum]});
        r.ops().gather_rows(r.stream(), {r[dsum], r[v.slot_of_row], r[v.dout], r[v.in_use], k, r[v.row_of_slot]});
      }};
  p.weight_gradient = {{{dy}, {sum}, {up.gradient, Access::add}}, [=](const Run& r) {
                         r.ops().matmul(r.stream(), {tokens.of(r[dy]), r[sum], r[up.gradient], Transposed::yes,
                                                     Transposed::no, r.store(up.gradient)});
                       }};
}

// The sum over choices; rows are already weighted.
void add_join(ModuleBuilder& b, const ExpertsSpec& spec, const Routing& v, ValueId x, ValueId y, ValueId dy,
              ValueId shared_out) {
  const RoutedTokens tokens = routed_tokens(b);
  const bool shared = spec.shared_ffn > 0;
  const std::int64_t k = spec.router.k * v.copies;
  Piece& p = b.piece("join");
  p.forward.uses = {{x}, {v.out}, {v.row_of_slot}, {y, Access::write}};
  if (shared) p.forward.uses.push_back({shared_out});
  p.forward.run = [=](const Run& r) {
    r.ops().sum_rows(r.stream(),
                     {r[v.out], r[v.row_of_slot], r[y], tokens.of(r[x]), shared ? r[shared_out] : Tensor{}});
  };
  p.backward = {{{dy}, {v.slot_of_row}, {v.row_of_slot}, {v.in_use}, {v.dout, Access::write}}, [=](const Run& r) {
                  r.ops().gather_rows(
                      r.stream(), {tokens.of(r[dy]), r[v.slot_of_row], r[v.dout], r[v.in_use], k, r[v.row_of_slot]});
                }};
}

}  // namespace

ValueId add_experts(ModuleBuilder& b, const ExpertsSpec& spec, ValueId x) {
  const bool shared = spec.shared_ffn > 0;
  const RoutedTokens tokens = routed_tokens(b);
  const Shape routed{tokens.rows.count, b.config().hidden};
  const ValueId y = b.activation("y", b.compute(), {b.stream_tokens(), b.config().hidden});
  const ValueId dy = b.gradient_of(y);

  Routing v;
  ValueId y_here = y, dx_here;
  if (!tokens.are_all) {
    y_here = b.activation("y_here", b.compute(), routed);
    dx_here = b.activation("d(x)_here", b.compute(), routed);
    b.piece("split", Lane::tensor).backward = gathered(b.tensor_ranks(), dx_here, b.gradient_of(x));
  }
  add_route(b, spec, x, dx_here, dy, v);
  ValueId shared_out;
  const auto add_shared = [&] {
    if (shared) shared_out = add_shared_expert(b, spec, v, dy);
  };
  if (const Layout& layout = b.options().layout; layout.divides(layout.expert_parts())) {
    add_exchanged_experts(b, spec, v, add_shared);
  } else {
    add_shared();
    add_expert_mlp(b, spec,
                   {v.counts, v.offsets, v.in_use, v.rows, v.row_weights, v.drows, v.drow_weights, v.out, v.dout, v.R,
                    0, spec.experts});
  }

  (spec.latent > 0 ? add_latent_join : add_join)(b, spec, v, x, y_here, dy, shared_out);
  if (!tokens.are_all) b.piece("gather", Lane::tensor).forward = gathered(b.tensor_ranks(), y_here, y);
  return y;
}

}  // namespace weft
