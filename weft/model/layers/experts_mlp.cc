// experts: one grouped MLP over the rows of all experts of this rank. The router's weight multiplies the activation
// before the second product, so that the sum over choices needs no weights. Expert tensor ranks divide each expert: here are
// some rows of its gate and up, and the same columns of its down; results are parts of a sum.
#include "weft/device/operations.h"
#include "weft/model/layers/experts.h"

namespace weft {

void add_expert_mlp(ModuleBuilder& b, const ExpertsSpec& spec, const ExpertRows& v) {
  const TensorRanks& parts = b.expert_tensor_ranks();
  const std::int64_t H = row_width(b, spec), E = v.experts, all = spec.ffn, F = parts.share(all), R = v.R;
  const Range bias_columns = parts.part_of(H);  // of the second bias: each rank adds some of it
  const bool gated = spec.activation.gated();
  const std::int64_t width = gated ? 2 * F : F;
  const DType compute = b.compute();
  const ActivationSpec act = spec.activation;

  const bool bias = spec.bias;
  const Init zero{Init::Kind::constant, 0};

  std::vector<ParameterPart> up_parts, down_parts, up_bias_parts, down_bias_parts;
  for (std::int64_t i = 0; i < E; ++i) {
    const int e = static_cast<int>(v.first_expert + i);
    if (gated) up_parts.push_back(b.expert_part(Role::gate, {all, H}, 0, b.matrix_init(), e));
    up_parts.push_back(b.expert_part(Role::up, {all, H}, 0, b.matrix_init(), e));
    down_parts.push_back(b.expert_part(Role::down, {H, all}, 1, b.residual_init(), e));
    if (gated) up_bias_parts.push_back(b.expert_part(Role::gate_bias, {all}, 0, zero, e));
    up_bias_parts.push_back(b.expert_part(Role::up_bias, {all}, 0, zero, e));
    down_bias_parts.push_back(b.expert_part(Role::down_bias, {H}, 0, zero, e));
  }
  const ParameterValues w1 = b.parameter("up_weight", {E, width, H}, up_parts);
  const ParameterValues w2 = b.parameter("down_weight", {E, H, F}, down_parts);
  ParameterValues b1, b2;
  if (bias) {
    b1 = b.parameter("up_bias", {E, width}, up_bias_parts);
    b2 = b.parameter("down_bias", {E, bias_columns.count}, down_bias_parts);
  }

  const ValueId h = b.activation("h", compute, {R, width});
  const ValueId a = b.activation("a", compute, {R, F});
  const ValueId dh = b.activation("d(h)", compute, {R, width});
  const ValueId da = b.scratch("d(a)", compute, {R, F});

  for (ValueId value : {h, a, dh, da}) b.module().values[value.index()].in_use = v.in_use_share;

  const auto biased = [=](const Tensor& rows) { return rows.slice_columns(bias_columns.first, bias_columns.count); };

  Piece& p = b.piece("experts");
  p.forward.uses = {{v.rows},   {v.row_weights}, {v.counts},         {v.offsets},        {v.in_use},
                    {w1.value}, {w2.value},      {h, Access::write}, {a, Access::write}, {v.out, Access::write}};
  if (bias) p.forward.uses.insert(p.forward.uses.end(), {{b1.value}, {b2.value}});
  const auto raise = [=](const Run& r) {
    GroupedMatmul up{GroupedMatmul::Mode::forward, r[v.rows], r[w1.value], r[h], v.groups(r)};
    if (bias) up.bias = r[b1.value];
    r.ops().grouped_matmul(r.stream(), up);
  };
  const auto activate = [=](const Run& r) {
    r.ops().activation(r.stream(), {act, r[h], r[a], r[v.row_weights], r[v.in_use]});
  };
  const auto lower = [=](const Run& r) {
    r.ops().grouped_matmul(r.stream(), {GroupedMatmul::Mode::forward, r[a], r[w2.value], r[v.out], v.groups(r)});
    // `a` already includes the row's weight; the second bias needs it too.
    if (bias) r.ops().grouped_bias(r.stream(), {biased(r[v.out]), r[b2.value], r[v.row_weights], v.groups(r)});
  };
  p.forward.run = [=](const Run& r) {
    raise(r);
    activate(r);
    lower(r);
  };
  using enum RecomputeModule;
  p.parts = {
      {"up", set_of({moe}), {{{v.rows}, {v.counts}, {v.offsets}, {w1.value}, {h, Access::write}}, raise}},
      {"act", set_of({moe, moe_act}), {{{h}, {v.row_weights}, {v.in_use}, {a, Access::write}}, activate}},
      {"down", 0, {{{a}, {v.counts}, {v.offsets}, {w2.value}, {v.out, Access::write}}, lower}},
  };
  if (bias) {
    p.parts[0].code.uses.push_back({b1.value});
    p.parts[2].code.uses.insert(p.parts[2].code.uses.end(), {{b2.value}, {v.row_weights}});
  }

  p.backward.uses = {{v.dout},
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
  if (bias) p.backward.uses.push_back({b2.value});
  p.backward.run = [=](const Run& r) {
    using Mode = GroupedMatmul::Mode;
    r.ops().grouped_matmul(r.stream(), {Mode::input_gradient, r[da], r[w2.value], r[v.dout], v.groups(r)});
    r.ops().activation_backward(r.stream(),
                                {act, r[h], r[v.row_weights], r[da], r[dh], r[v.drow_weights], r[v.in_use]});
    if (bias)
      r.ops().grouped_bias_scale_gradient(r.stream(), {biased(r[v.dout]), r[b2.value], r[v.drow_weights], v.groups(r)});
    r.ops().grouped_matmul(r.stream(), {Mode::input_gradient, r[v.drows], r[w1.value], r[dh], v.groups(r)});
  };

  p.weight_gradient.uses = {
      {v.dout}, {a}, {dh}, {v.rows}, {v.counts}, {v.offsets}, {w2.gradient, Access::add}, {w1.gradient, Access::add}};
  if (bias)
    p.weight_gradient.uses.insert(p.weight_gradient.uses.end(),
                                  {{v.row_weights}, {b2.gradient, Access::add}, {b1.gradient, Access::add}});
  p.weight_gradient.run = [=](const Run& r) {
    const auto gradient = [&](ValueId x, ParameterValues w, ValueId dy) {
      r.ops().grouped_matmul(r.stream(), {GroupedMatmul::Mode::weight_gradient, r[x], r[w.gradient], r[dy], v.groups(r),
                                          r.store(w.gradient)});
    };
    gradient(a, w2, v.dout);
    gradient(v.rows, w1, dh);
    if (!bias) return;
    r.ops().grouped_bias_gradient(
        r.stream(), {biased(r[v.dout]), r[v.row_weights], r[b2.gradient], v.groups(r), r.store(b2.gradient)});
    r.ops().grouped_column_sum(r.stream(), {r[dh], r[b1.gradient], v.groups(r), r.store(b1.gradient)});
  };
}

}  // namespace weft
