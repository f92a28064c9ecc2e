// The shared expert of several tensor ranks, which divide its width. T tokens of a micro-batch, of which a rank routes some:
//
//   shared_input   backward only, of a gated one: d(xn) also has the gate's part
//   shared_gather  all_gather xn; backward: the sum over ranks of d(xn)
//   shared         all tokens, this rank's part of the width: its part of a sum
//   shared_again   backward only: all_gather xn for the weight gradient
//   shared_sum     the sum over ranks, of this rank's tokens; backward: all_gather its gradient
//   shared_gate    times sigmoid(x w), of this rank's tokens
#include "weft/device/operations.h"
#include "weft/model/layers/experts.h"
#include "weft/model/layers/tensor_transfers.h"

namespace weft {

namespace {

constexpr RecomputeModules recomputed = set_of({RecomputeModule::shared_experts, RecomputeModule::moe});

struct SharedExpert {
  TensorRanks ranks;
  ActivationSpec activation;
  Range rows;  // of dy, the tokens that are routed here
  ParameterValues w1, w2, gate;
  ValueId xn, all_xn, xn_again, h, a, partial, raw, logit, out;
  ValueId dy, draw, all_draw, da, dh, partial_dxn, dxn_sum, dlogit, dxn;
  bool gated() const { return gate.value.valid(); }
};

void add_parameters(ModuleBuilder& b, const ExpertsSpec& spec, SharedExpert& v) {
  const std::int64_t H = b.config().hidden, F = spec.shared_ffn, here = v.ranks.share(F);
  std::vector<ParameterPart> parts;
  if (v.activation.gated()) parts.push_back(b.tensor_part(Role::shared_gate, {F, H}, 0, b.matrix_init()));
  parts.push_back(b.tensor_part(Role::shared_up, {F, H}, 0, b.matrix_init()));
  v.w1 = b.parameter("shared_up_weight", {std::ssize(parts) * here, H}, parts);
  v.w2 = b.parameter("shared_down_weight", {H, here}, {b.tensor_part(Role::shared_down, {H, F}, 1, b.residual_init())});
  if (spec.shared_gate)
    v.gate = b.parameter("shared_expert_gate", {1, H}, {b.part(Role::shared_expert_gate, {1, H}, b.matrix_init())});
}

void add_values(ModuleBuilder& b, const ExpertsSpec& spec, SharedExpert& v) {
  const std::int64_t T = b.tokens(), n = v.rows.count, H = b.config().hidden, F = v.ranks.share(spec.shared_ffn);
  const std::int64_t width = v.activation.gated() ? 2 * F : F;
  const DType compute = b.compute();
  const auto made = [&](const char* name, std::int64_t rows, std::int64_t columns) {
    return b.activation(name, compute, {rows, columns});
  };
  v.all_xn = made("shared_all_xn", T, H);
  v.xn_again = made("shared_all_xn_again", T, H);
  v.h = made("shared_h", T, width);
  v.a = made("shared_a", T, F);
  v.partial = made("shared_partial", T, H);
  v.out = made("shared_out", n, H);
  v.raw = v.gated() ? made("shared_raw", n, H) : v.out;
  if (v.gated()) {
    v.logit = made("shared_logit", n, 1);
    v.dlogit = made("d(shared_logit)", n, 1);
    v.draw = made("d(shared_raw)", n, H);
  }
  // Where every rank has dy of all tokens, it need not be gathered.
  const bool whole = !v.gated() && !v.ranks.sequence;
  v.all_draw = whole ? v.dy : made("d(shared_all_raw)", T, H);
  if (!v.gated()) v.draw = v.dy;
  v.dh = made("d(shared_h)", T, width);
  v.da = b.scratch("d(shared_a)", compute, {T, F});
  v.partial_dxn = made("d(shared_all_xn)", T, H);
  v.dxn_sum = v.gated() ? made("d(xn)_shared_sum", n, H) : v.dxn;
  for (const ValueId sum : {v.raw, v.dxn_sum}) b.module().values[sum.index()].summed_over = v.ranks.group;
}

void add_input_piece(ModuleBuilder& b, const SharedExpert& v) {
  Piece& p = b.piece("shared_input");
  reads(p.backward, {v.dlogit, v.gate.value, v.dxn_sum});
  writes(p.backward, {v.dxn});
  p.backward.run = [v](const Run& r) {
    Matmul product{r[v.dlogit], r[v.gate.value], r[v.dxn]};
    product.residual = r[v.dxn_sum];
    r.ops().matmul(r.stream(), product);
  };
}

void add_products(ModuleBuilder& b, const SharedExpert& v) {
  Piece& p = b.piece("shared");
  reads(p.forward, {v.all_xn, v.w1.value, v.w2.value});
  writes(p.forward, {v.h, v.a, v.partial});
  const auto raise = [v](const Run& r) {
    r.ops().matmul(r.stream(), {r[v.all_xn], r[v.w1.value], r[v.h], Transposed::no, Transposed::yes});
    r.ops().activation(r.stream(), {v.activation, r[v.h], r[v.a]});
  };
  const auto lower = [v](const Run& r) {
    r.ops().matmul(r.stream(), {r[v.a], r[v.w2.value], r[v.partial], Transposed::no, Transposed::yes});
  };
  p.forward.run = [=](const Run& r) {
    raise(r);
    lower(r);
  };
  // The gate's backward pass reads the sum over ranks, which needs these products.
  p.parts = {{"up", recomputed, {{{v.all_xn}, {v.w1.value}, {v.h, Access::write}, {v.a, Access::write}}, raise}},
             {"down",
              v.gated() ? recomputed : RecomputeModules{},
              {{{v.a}, {v.w2.value}, {v.partial, Access::write}}, lower}}};
  reads(p.backward, {v.all_draw, v.h, v.w1.value, v.w2.value});
  writes(p.backward, {v.da, v.dh, v.partial_dxn});
  p.backward.run = [v](const Run& r) {
    r.ops().matmul(r.stream(), {r[v.all_draw], r[v.w2.value], r[v.da]});
    r.ops().activation_backward(r.stream(), {v.activation, r[v.h], {}, r[v.da], r[v.dh]});
    r.ops().matmul(r.stream(), {r[v.dh], r[v.w1.value], r[v.partial_dxn]});
  };
  reads(p.weight_gradient, {v.all_draw, v.a, v.dh, v.xn_again});
  adds_to(p.weight_gradient, {v.w2.gradient, v.w1.gradient});
  p.weight_gradient.run = [v](const Run& r) {
    const auto gradient = [&](ValueId d, ValueId in, ParameterValues w) {
      r.ops().matmul(r.stream(), {r[d], r[in], r[w.gradient], Transposed::yes, Transposed::no, r.store(w.gradient)});
    };
    gradient(v.all_draw, v.a, v.w2);
    gradient(v.dh, v.xn_again, v.w1);
  };
}

void add_gate_piece(ModuleBuilder& b, const SharedExpert& v) {
  Piece& p = b.piece("shared_gate");
  reads(p.forward, {v.xn, v.gate.value, v.raw});
  writes(p.forward, {v.logit, v.out});
  const auto weigh = [v](const Run& r) {
    r.ops().matmul(r.stream(), {r[v.xn], r[v.gate.value], r[v.logit], Transposed::no, Transposed::yes});
  };
  const auto gate = [v](const Run& r) { r.ops().sigmoid_gate(r.stream(), {r[v.raw], r[v.logit], r[v.out]}); };
  p.forward.run = [=](const Run& r) {
    weigh(r);
    gate(r);
  };
  p.parts = {{"logit", recomputed, {{{v.xn}, {v.gate.value}, {v.logit, Access::write}}, weigh}},
             {"out", 0, {{{v.raw}, {v.logit}, {v.out, Access::write}}, gate}}};
  reads(p.backward, {v.dy, v.raw, v.logit});
  writes(p.backward, {v.draw, v.dlogit});
  p.backward.run = [v](const Run& r) {
    const Tensor all = r[v.dy], dy = v.ranks.sequence ? all : all.slice_rows(v.rows.first, v.rows.count);
    r.ops().sigmoid_gate_backward(r.stream(), {r[v.raw], r[v.logit], dy, r[v.draw], r[v.dlogit]});
  };
  reads(p.weight_gradient, {v.dlogit, v.xn});
  adds_to(p.weight_gradient, {v.gate.gradient});
  p.weight_gradient.run = [v](const Run& r) {
    r.ops().matmul(r.stream(), {r[v.dlogit], r[v.xn], r[v.gate.gradient], Transposed::yes, Transposed::no,
                                r.store(v.gate.gradient)});
  };
}

}  // namespace

ValueId add_split_shared_expert(ModuleBuilder& b, const ExpertsSpec& spec, const Routing& routing, ValueId dy) {
  SharedExpert v;
  v.ranks = b.tensor_ranks();
  v.activation = spec.activation;
  v.rows = b.tensor_ranks().part_of(b.tokens());
  v.xn = routing.xn;
  v.dxn = routing.dxn_shared;
  v.dy = dy;
  add_parameters(b, spec, v);
  add_values(b, spec, v);
  if (v.gated()) add_input_piece(b, v);
  Piece& gather = b.piece("shared_gather", Lane::tensor);
  gather.modules = recomputed;
  gather.forward = gathered(v.ranks, v.xn, v.all_xn);
  gather.backward = scattered(v.ranks, v.partial_dxn, v.dxn_sum);
  add_products(b, v);
  b.piece("shared_again", Lane::tensor).backward = gathered(v.ranks, v.xn, v.xn_again);
  Piece& sum = b.piece("shared_sum", Lane::tensor);
  if (v.gated()) sum.modules = recomputed;
  sum.forward = scattered(v.ranks, v.partial, v.raw);
  if (v.all_draw != v.dy) sum.backward = gathered(v.ranks, v.draw, v.all_draw);
  if (v.gated()) add_gate_piece(b, v);
  return v.out;
}

}  // namespace weft
