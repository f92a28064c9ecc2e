// shared: the shared expert. Every token goes through it, unweighted or times sigmoid(x w).
#include "weft/device/operations.h"
#include "weft/model/layers/experts.h"

namespace weft {

ValueId add_shared_expert(ModuleBuilder& b, const ExpertsSpec& spec, const Routing& v, ValueId dy) {
  if (b.tensor_ranks().divide()) return add_split_shared_expert(b, spec, v, dy);
  const std::int64_t T = b.tokens(), H = b.config().hidden, F = spec.shared_ffn;
  const bool gated = spec.activation.gated();
  const std::int64_t width = gated ? 2 * F : F;
  const DType compute = b.compute();
  const ActivationSpec act = spec.activation;

  std::vector<ParameterPart> parts;
  if (gated) parts.push_back(b.part(Role::shared_gate, {F, H}, b.matrix_init()));
  parts.push_back(b.part(Role::shared_up, {F, H}, b.matrix_init()));
  const ParameterValues w1 = b.parameter("shared_up_weight", {width, H}, parts);
  const ParameterValues w2 =
      b.parameter("shared_down_weight", {H, F}, {b.part(Role::shared_down, {H, F}, b.residual_init())});

  const ValueId h = b.activation("shared_h", compute, {T, width});
  const ValueId a = b.activation("shared_a", compute, {T, F});
  const ValueId out = b.activation("shared_out", compute, {T, H});
  const bool weighted = spec.shared_gate;
  ParameterValues wg;
  ValueId logit, raw = out, dlogit, draw = dy;  // raw: before the gate
  if (weighted) {
    wg = b.parameter("shared_expert_gate", {1, H}, {b.part(Role::shared_expert_gate, {1, H}, b.matrix_init())});
    logit = b.activation("shared_logit", compute, {T, 1});
    raw = b.activation("shared_raw", compute, {T, H});
    dlogit = b.activation("d(shared_logit)", compute, {T, 1});
    draw = b.activation("d(shared_raw)", compute, {T, H});
  }
  const ValueId dh = b.activation("d(shared_h)", compute, {T, width});
  const ValueId da = b.scratch("d(shared_a)", compute, {T, F});

  Piece& p = b.piece("shared");
  const auto activate = [=](const Run& r) {
    r.ops().matmul(r.stream(), {r[v.xn], r[w1.value], r[h], Transposed::no, Transposed::yes});
    r.ops().activation(r.stream(), {act, r[h], r[a]});
  };
  const auto lower = [=](const Run& r) {
    r.ops().matmul(r.stream(), {r[a], r[w2.value], r[raw], Transposed::no, Transposed::yes});
    if (weighted) r.ops().matmul(r.stream(), {r[v.xn], r[wg.value], r[logit], Transposed::no, Transposed::yes});
  };
  const auto gate = [=](const Run& r) { r.ops().sigmoid_gate(r.stream(), {r[raw], r[logit], r[out]}); };
  p.forward = {{{v.xn}, {w1.value}, {w2.value}, {h, Access::write}, {a, Access::write}, {out, Access::write}},
               [=](const Run& r) {
                 activate(r);
                 lower(r);
                 if (weighted) gate(r);
               }};
  using enum RecomputeModule;
  const RecomputeModules own = set_of({shared_experts, moe});
  p.parts = {{"up", own, {{{v.xn}, {w1.value}, {h, Access::write}, {a, Access::write}}, activate}}};
  if (weighted) {
    p.parts.push_back(
        {"down", own, {{{v.xn}, {a}, {w2.value}, {wg.value}, {raw, Access::write}, {logit, Access::write}}, lower}});
    p.parts.push_back({"gate", 0, {{{raw}, {logit}, {out, Access::write}}, gate}});
  } else {
    p.parts.push_back({"down", 0, {{{a}, {w2.value}, {out, Access::write}}, lower}});
  }
  p.backward = {
      {{dy}, {h}, {w1.value}, {w2.value}, {da, Access::write}, {dh, Access::write}, {v.dxn_shared, Access::write}},
      [=](const Run& r) {
        if (weighted) r.ops().sigmoid_gate_backward(r.stream(), {r[raw], r[logit], r[dy], r[draw], r[dlogit]});
        r.ops().matmul(r.stream(), {r[draw], r[w2.value], r[da]});
        r.ops().activation_backward(r.stream(), {act, r[h], {}, r[da], r[dh]});
        r.ops().matmul(r.stream(), {r[dh], r[w1.value], r[v.dxn_shared]});
        if (!weighted) return;
        r.ops().matmul(r.stream(),
                       {r[dlogit], r[wg.value], r[v.dxn_shared], Transposed::no, Transposed::no, Store::add});
      }};
  p.weight_gradient = {
      {{draw}, {a}, {dh}, {v.xn}, {w2.gradient, Access::add}, {w1.gradient, Access::add}}, [=](const Run& r) {
        const auto gradient = [&](ValueId d, ValueId in, ParameterValues w) {
          r.ops().matmul(r.stream(),
                         {r[d], r[in], r[w.gradient], Transposed::yes, Transposed::no, r.store(w.gradient)});
        };
        gradient(draw, a, w2);
        gradient(dh, v.xn, w1);
        if (weighted) gradient(dlogit, v.xn, wg);
      }};
  if (weighted) {
    for (const ValueUse& use : {ValueUse{wg.value}, ValueUse{logit, Access::write}, ValueUse{raw, Access::write}})
      p.forward.uses.push_back(use);
    for (const ValueUse& use : {ValueUse{wg.value}, ValueUse{logit}, ValueUse{raw}, ValueUse{dlogit, Access::write},
                                ValueUse{draw, Access::write}})
      p.backward.uses.push_back(use);
    p.weight_gradient.uses.insert(p.weight_gradient.uses.end(), {{dlogit}, {wg.gradient, Access::add}});
  }
  return out;
}

}  // namespace weft
