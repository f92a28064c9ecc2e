// route: norm, router, a row for every (token, choice), sorted by expert.
#include "weft/base/random.h"
#include "weft/device/operations.h"
#include "weft/model/layers/experts_balance.h"

namespace weft {

namespace {

std::int64_t align(std::int64_t rows, std::int64_t alignment) { return (rows + alignment - 1) / alignment * alignment; }
// Most rows: those of every expert may be padded to the alignment.
std::int64_t row_bound(std::int64_t slots, std::int64_t experts, std::int64_t alignment) {
  return slots + (alignment > 1 ? experts * (alignment - 1) : 0);
}

// Logits [T, E] that spread tokens evenly over experts: standard normal numbers, a function of the layer and the
// token's position in its micro-batch. So they are the same in every micro-batch and step, on every layout and device.
ValueId forced_logits(ModuleBuilder& b, const std::string& layer, std::int64_t experts) {  // [tokens, E]
  const std::string name = layer + ".forced_logits";
  const std::vector<std::int64_t> tokens =
      b.context_ranks().tokens(b.context_ranks().rank, b.options().batch, b.options().length);
  return b.constant(name, {b.tokens(), experts}, [=, key = random_key(0, name)](double* out) {
    for (const std::int64_t token : tokens)
      for (std::int64_t e = 0; e < experts; ++e)
        *out++ = random_normal(key, static_cast<std::uint64_t>(token * experts + e));
  });
}

}  // namespace

void add_route(ModuleBuilder& b, const ExpertsSpec& spec, ValueId x, ValueId dx_here, ValueId dy, Routing& v) {
  const RoutedTokens tokens = routed_tokens(b);
  const Range in_batch = b.tensor_ranks().part_of(b.tokens());
  const std::int64_t T = tokens.rows.count, H = b.config().hidden, E = spec.experts, k = spec.router.k;
  const std::int64_t W = row_width(b, spec);
  const bool latent = spec.latent > 0;
  const DType compute = b.compute(), acc = b.accumulate();
  const double eps = b.config().norm_epsilon;
  const bool zero_centred = b.config().zero_centred_norms, shared = spec.shared_ffn > 0;
  // Rows that are exchanged are not padded.
  const Layout& layout = b.options().layout;
  const bool travels = layout.divides(layout.expert_parts());
  const std::int64_t copies = v.copies = layout.size_of(layout.expert_tensor_ranks());
  const std::int64_t here = layout.experts_here(E).count, kc = k * copies, Ec = E * copies;
  const std::int64_t alignment = travels ? 1 : b.options().row_alignment;
  const RouterSpec router = spec.router;

  const ParameterValues norm = b.norm_weight("norm_weight", Role::norm, H);
  const ParameterValues w =
      b.precise_parameter("router_weight", {E, H}, {b.part(Role::router, {E, H}, b.matrix_init())});
  ParameterValues bias;  // of the logits
  if (spec.router_bias)
    bias = b.precise_parameter("router_bias", {E}, {b.part(Role::router_bias, {E}, {Init::Kind::constant, 0})});
  const bool biased = spec.router_bias;
  ValueId choice_bias;
  if (spec.expert_bias)
    choice_bias = b.frozen_parameter("expert_bias", {E}, {b.part(Role::expert_bias, {E}, {Init::Kind::constant, 0})});

  ParameterValues down;
  ValueId lowered, dlowered;
  if (latent) {
    down = b.parameter("latent_down_weight", {W, H}, {b.part(Role::latent_down, {W, H}, b.matrix_init())});
    lowered = b.scratch("lowered", compute, {T, W});
    dlowered = b.activation("d(lowered)", compute, {T, W});
  }

  // Forced logits replace the router's; their gradient goes to the router, which still computes.
  const ValueId forced = spec.balance.forced ? forced_logits(b, b.layer(), E) : ValueId{};
  const bool keeps_logits = spec.balance.z_loss > 0 && !forced.valid();
  const ValueId logits = keeps_logits ? b.activation("logits", acc, {T, E}) : b.scratch("logits", acc, {T, E});
  v.xn = b.activation("xn", compute, {T, H});
  const ValueId inverse = b.activation("inverse", acc, {T});
  const ValueId scores = b.activation("scores", acc, {T, E});
  const ValueId weights = b.activation("weights", acc, {T, k});
  const ValueId indices = b.activation("indices", DType::i32, {T, k});
  const ValueId used_logits = forced.valid() ? forced : logits;
  const RouterBalance balance(b, spec, scores, used_logits, indices, weights, choice_bias);
  const ValueId kept = balance.kept();
  const std::int64_t capacity = balance.rows_per_expert();
  const ValueId slots = copies > 1 ? b.scratch("choices_of_parts", DType::i32, {T, kc}) : kept;
  v.R = capacity > 0 ? Ec * align(capacity, alignment) : row_bound(T * kc, Ec, alignment);
  v.counts = b.activation("counts", DType::i32, {Ec});
  // Where rows are exchanged, experts have their own offsets.
  v.offsets = travels ? b.scratch("offsets", DType::i32, {Ec + 1}) : b.activation("offsets", DType::i32, {Ec + 1});
  v.row_of_slot = b.activation("row_of_slot", DType::i32, {T, kc});
  v.slot_of_row = b.activation("slot_of_row", DType::i32, {v.R});
  v.in_use = b.activation("rows_in_use", DType::i32, {1});
  v.rows = b.activation("rows", compute, {v.R, W});
  v.row_weights = b.activation("row_weights", acc, {v.R, 1});
  v.drows = b.activation("d(rows)", compute, {v.R, W});
  v.drow_weights = b.activation("d(row_weights)", acc, {v.R, 1});
  v.out = b.activation("out", compute, {v.R, W});
  v.dout = b.activation("d(out)", compute, {v.R, W});
  if (shared) v.dxn_shared = b.activation("d(xn)_shared", compute, {T, H});
  const ValueId dweights = b.scratch("d(weights)", acc, {T, k});
  const ValueId dlogits = b.activation("d(logits)", acc, {T, E});
  const ValueId dxn = b.scratch("d(xn)", compute, {T, H});
  const ValueId dx = dx_here.valid() ? dx_here : b.gradient_of(x);

  Piece& p = b.piece("route");
  p.forward.uses = {{x}, {norm.value}, {w.value}};
  for (ValueId out : {v.xn, inverse, logits, scores, weights, indices, v.counts, v.offsets, v.row_of_slot,
                      v.slot_of_row, v.in_use, v.rows, v.row_weights})
    p.forward.uses.push_back({out, Access::write});
  if (latent) p.forward.uses.insert(p.forward.uses.end(), {{down.value}, {lowered, Access::write}});
  if (copies > 1) p.forward.uses.push_back({slots, Access::write});
  if (biased) p.forward.uses.push_back({bias.value});
  if (forced.valid()) p.forward.uses.push_back({forced});
  if (choice_bias.valid()) p.forward.uses.push_back({choice_bias});
  p.evaluate.uses = p.forward.uses;
  balance.add_forward(p.forward);
  balance.add_evaluation(p.evaluate);
  const auto normalise = [=](const Run& r) {
    r.ops().rms_norm(r.stream(), {tokens.of(r[x]), r[norm.value], r[v.xn], r[inverse], 1, eps, zero_centred});
  };
  const auto route = [=](const Run& r, bool trains) {
    Matmul product{r[v.xn], r[w.value], r[logits], Transposed::no, Transposed::yes};
    if (biased) product.bias = r[bias.value];
    r.ops().matmul(r.stream(), product);
    const Tensor correction = choice_bias.valid() ? r[choice_bias] : Tensor{};
    const Tensor chosen_by = forced.valid() ? r[forced].slice_rows(in_batch.first, T) : r[logits];
    r.ops().router(r.stream(), {router, chosen_by, correction, r[scores], r[weights], r[indices]});
    balance.drop(r);
    if (trains) balance.count(r);
    if (copies > 1) r.ops().copy_choices(r.stream(), {r[kept], r[slots], here, copies});
    r.ops().route_rows(r.stream(), {r[slots], r[v.counts], r[v.offsets], r[v.row_of_slot], r[v.slot_of_row],
                                    r[v.in_use], alignment, capacity});
    if (latent) r.ops().matmul(r.stream(), {r[v.xn], r[down.value], r[lowered], Transposed::no, Transposed::yes});
    r.ops().gather_rows(
        r.stream(), {latent ? r[lowered] : r[v.xn], r[v.slot_of_row], r[v.rows], r[v.in_use], kc, r[v.row_of_slot]});
    r.ops().gather_rows(r.stream(),
                        {r[weights].reshape({T * k, 1}), r[v.slot_of_row], r[v.row_weights], r[v.in_use], copies});
  };
  p.forward.run = [=](const Run& r) {
    normalise(r);
    route(r, true);
  };
  p.evaluate.run = [=](const Run& r) {
    normalise(r);
    route(r, false);
  };
  PiecePart first{"norm", set_of({RecomputeModule::layernorm})}, rest{"rows", set_of({RecomputeModule::moe})};
  first.code = {{{x}, {norm.value}, {v.xn, Access::write}, {inverse, Access::write}}, normalise};
  rest.code.run = [=](const Run& r) { route(r, false); };
  for (const ValueUse& use : p.evaluate.uses) {
    const bool of_norm = use.value == x || use.value == norm.value || use.value == inverse;
    if (!of_norm) rest.code.uses.push_back({use.value, use.value == v.xn ? Access::read : use.access});
  }
  p.parts = {std::move(first), std::move(rest)};

  p.backward.uses = {{dy},
                     {x},
                     {inverse},
                     {norm.value},
                     {w.value},
                     {scores},
                     {weights},
                     {indices},
                     {v.row_of_slot},
                     {v.drows},
                     {v.drow_weights},
                     {dweights, Access::write},
                     {dlogits, Access::write},
                     {dxn, Access::write},
                     {dx, Access::write},
                     {norm.gradient, Access::add}};
  if (shared) p.backward.uses.push_back({v.dxn_shared});
  balance.add_backward(p.backward);
  p.backward.run = [=](const Run& r) {
    const Tensor row_of_slot = r[v.row_of_slot];
    const Tensor extra = shared ? r[v.dxn_shared] : Tensor{};
    if (latent) {
      r.ops().sum_rows(r.stream(), {r[v.drows], row_of_slot, r[dlowered]});
      Matmul raise{r[dlowered], r[down.value], r[dxn]};
      raise.residual = extra;
      r.ops().matmul(r.stream(), raise);
    } else {
      r.ops().sum_rows(r.stream(), {r[v.drows], row_of_slot, r[dxn], {}, extra});
    }
    const Tensor each = r[dweights].reshape({T * k, 1});
    if (copies > 1)
      r.ops().sum_rows(r.stream(), {r[v.drow_weights], row_of_slot.reshape({T * k, copies}), each});
    else
      r.ops().gather_rows(r.stream(), {r[v.drow_weights], row_of_slot.reshape({T * k}), each, {}, 1});
    r.ops().router_backward(r.stream(), {router, r[scores], r[weights], r[indices], r[dweights], r[dlogits]});
    balance.add_gradients(r, dlogits);
    r.ops().matmul(r.stream(), {r[dlogits], r[w.value], r[dxn], Transposed::no, Transposed::no, Store::add});
    r.ops().rms_norm_backward(r.stream(), {tokens.of(r[x]), r[norm.value], r[inverse], r[dxn], r[dx], tokens.of(r[dy]),
                                           r[norm.gradient], 1, zero_centred, r.store(norm.gradient)});
  };

  p.weight_gradient = {{{dlogits}, {v.xn}, {w.gradient, Access::add}}, [=](const Run& r) {
                         const auto gradient = [&](ValueId d, ParameterValues of) {
                           r.ops().matmul(r.stream(), {r[d], r[v.xn], r[of.gradient], Transposed::yes, Transposed::no,
                                                       r.store(of.gradient)});
                         };
                         gradient(dlogits, w);
                         if (latent) gradient(dlowered, down);
                         if (biased)
                           r.ops().column_sum(r.stream(), {r[dlogits], r[bias.gradient], r.store(bias.gradient)});
                       }};
  if (biased) p.weight_gradient.uses.push_back({bias.gradient, Access::add});
  if (latent) {
    p.backward.uses.insert(p.backward.uses.end(), {{down.value}, {dlowered, Access::write}});
    p.weight_gradient.uses.insert(p.weight_gradient.uses.end(), {{dlowered}, {down.gradient, Access::add}});
  }
  balance.add_statistics(b);
}

}  // namespace weft
