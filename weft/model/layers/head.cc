// Final norm, and the head with cross entropy.
//
// The head never holds all logits: it works on slices of tokens. While a slice's logits are there it makes loss, the
// gradient of its input and the weight gradient, so that logits are computed once; its forward is its backward.
#include <algorithm>

#include <fmt/format.h>

#include "weft/device/operations.h"
#include "weft/model/layers/layers.h"

namespace weft {

ValueId add_final_norm(ModuleBuilder& b, ValueId x, int depth) {
  const std::int64_t T = b.tokens(), H = b.config().hidden;
  const double eps = b.config().norm_epsilon;
  const bool zero_centred = b.config().zero_centred_norms;
  b.enter(depth, -1, depth == 0 ? "final_norm" : fmt::format("mtp{}.final_norm", depth));
  if (depth == 0) b.next_unit();  // that of an MTP depth stands in the unit of its last layer
  const ParameterValues w = b.norm_weight("weight", Role::final_norm, H);
  const ValueId y = b.activation("y", b.compute(), {T, H});
  const ValueId inverse = b.activation("inverse", b.accumulate(), {T});
  const ValueId dx = b.gradient_of(x), dy = b.gradient_of(y);

  Piece& p = b.piece("norm");
  p.place.part = Part::final_norm;
  p.forward = {{{x}, {w.value}, {y, Access::write}, {inverse, Access::write}}, [=](const Run& r) {
                 r.ops().rms_norm(r.stream(), {r[x], r[w.value], r[y], r[inverse], 1, eps, zero_centred});
               }};
  p.backward = {{{dy}, {x}, {inverse}, {w.value}, {dx, Access::write}, {w.gradient, Access::add}}, [=](const Run& r) {
                  r.ops().rms_norm_backward(r.stream(), {r[x], r[w.value], r[inverse], r[dy], r[dx], Tensor{},
                                                         r[w.gradient], 1, zero_centred, r.store(w.gradient)});
                }};
  return y;
}

void add_head(ModuleBuilder& b, ValueId x, ParameterValues w, int depth) {
  const std::int64_t T = b.tokens(), V = b.config().embedding_rows();
  const DType compute = b.compute(), acc = b.accumulate();
  const std::int64_t row_bytes = V * static_cast<std::int64_t>(size_of(acc));
  const std::int64_t slices = std::clamp<std::int64_t>(
      (T * row_bytes + b.options().logits_slice_bytes - 1) / b.options().logits_slice_bytes, 1, T);
  const std::int64_t S = (T + slices - 1) / slices;
  const std::int64_t vocabulary = b.config().vocabulary;
  Module& m = b.module();
  const bool main = depth == 0;
  const std::int64_t length = b.options().length;
  b.enter(depth, -1, main ? "head" : fmt::format("mtp{}.head", depth));
  const ValueId next = m.labels;  // what the main part predicts
  const ValueId labels = main ? next : b.scratch("labels", DType::i32, {T});
  const ValueId loss = main ? m.loss : m.mtp_losses[static_cast<std::size_t>(depth - 1)];
  const ValueId scales = main ? m.step_values : m.mtp_scales;
  const std::int64_t scale_row = main ? static_cast<std::int64_t>(StepValues::loss_scale) : depth - 1;

  const ValueId logits = b.scratch("logits", acc, {S, V});
  const bool narrow = compute != acc;  // gradients of logits go into products in the model's dtype
  const ValueId dlogits = narrow ? b.scratch("d(logits)", compute, {S, V}) : logits;
  const ValueId dx = b.gradient_of(x);
  const auto scale_of = [scales, scale_row](const Run& r) { return r[scales].slice_rows(scale_row, 1); };
  const auto make_labels = [=](const Run& r) {
    if (!main) r.ops().shift(r.stream(), {r[next], r[labels], {}, depth, -1, length});
  };
  // What a slice after the first does with a sum that the first one began.
  const auto after = [](Store first, std::int64_t begin) { return begin == 0 ? first : Store::add; };

  Piece& p = b.piece("loss");
  p.place.part = Part::head;
  p.forward.uses = {{x},
                    {w.value},
                    {next},
                    {scales},
                    {logits, Access::write},
                    {loss, Access::add},
                    {dx, Access::add},
                    {w.gradient, Access::add}};
  if (narrow) p.forward.uses.push_back({dlogits, Access::write});
  if (!main) p.forward.uses.push_back({labels, Access::write});
  p.forward.run = [=](const Run& r) {
    make_labels(r);
    for (std::int64_t begin = 0; begin < T; begin += S) {
      const std::int64_t n = std::min(S, T - begin);
      const Tensor rows = r[x].slice_rows(begin, n), part = r[logits].slice_rows(0, n),
                   dpart = r[dlogits].slice_rows(0, n);
      r.ops().matmul(r.stream(), {rows, r[w.value], part, Transposed::no, Transposed::yes});
      r.ops().cross_entropy(r.stream(), {part,
                                         r[labels].slice_rows(begin, n),
                                         scale_of(r),
                                         r[loss],
                                         dpart,
                                         {},
                                         vocabulary,
                                         after(r.store(loss), begin)});
      r.ops().matmul(r.stream(),
                     {dpart, r[w.value], r[dx].slice_rows(begin, n), Transposed::no, Transposed::no, r.store(dx)});
      r.ops().matmul(r.stream(),
                     {dpart, rows, r[w.gradient], Transposed::yes, Transposed::no, after(r.store(w.gradient), begin)});
    }
  };

  p.evaluate.uses = {{x}, {w.value}, {next}, {scales}, {logits, Access::write}, {loss, Access::add}};
  if (!main) p.evaluate.uses.push_back({labels, Access::write});
  if (main && b.options().keep_logits) {
    m.logits = b.value({"logits", ValueKind::output, acc, {T, V}});
    p.evaluate.uses.push_back({m.logits, Access::write});
  }
  const ValueId kept = main ? m.logits : ValueId{};
  p.evaluate.run = [=](const Run& r) {
    make_labels(r);
    for (std::int64_t begin = 0; begin < T; begin += S) {
      const std::int64_t n = std::min(S, T - begin);
      const Tensor part = r[logits].slice_rows(0, n);
      r.ops().matmul(r.stream(), {r[x].slice_rows(begin, n), r[w.value], part, Transposed::no, Transposed::yes});
      if (kept.valid()) r.ops().cast(r.stream(), {part, r[kept].slice_rows(begin, n)});
      r.ops().cross_entropy(r.stream(), {part,
                                         r[labels].slice_rows(begin, n),
                                         scale_of(r),
                                         r[loss],
                                         {},
                                         {},
                                         vocabulary,
                                         after(r.store(loss), begin)});
    }
  };
}

}  // namespace weft
