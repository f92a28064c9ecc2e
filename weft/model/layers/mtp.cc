// Multi-token prediction: what goes into depth d. With h the hidden state of depth d - 1 after its final norm (depth 0:
// the main part), and e the embedding of the token d positions further on:
//   y = W [norm_e(e) | norm_h(h)]         W [H, 2 H]
// Embedding and head are the main part's. A token whose further token lies beyond the sequence gets token 0; its label
// is not counted either, and nothing before it sees it.
#include <fmt/format.h>

#include "weft/device/operations.h"
#include "weft/model/layers/layers.h"

namespace weft {

ValueId add_mtp_input(ModuleBuilder& b, int depth, ValueId h, ParameterValues embedding) {
  const std::int64_t T = b.tokens(), H = b.config().hidden, length = b.options().length;
  const double eps = b.config().norm_epsilon;
  const bool zero_centred = b.config().zero_centred_norms;
  const DType compute = b.compute(), acc = b.accumulate();
  b.enter(depth, -1, fmt::format("mtp{}.input", depth));
  b.next_unit();
  const ParameterValues norm_e = b.norm_weight("embedding_norm_weight", Role::mtp_embedding_norm, H);
  const ParameterValues norm_h = b.norm_weight("hidden_norm_weight", Role::mtp_hidden_norm, H);
  const ParameterValues w =
      b.parameter("weight", {H, 2 * H}, {b.part(Role::mtp_projection, {H, 2 * H}, b.matrix_init())});

  const ValueId all_tokens = b.module().tokens;
  const ValueId tokens = b.activation("tokens", DType::i32, {T});
  const ValueId e = b.scratch("e", compute, {T, H}), again = b.scratch("e_again", compute, {T, H});
  const ValueId e_inverse = b.activation("e_inverse", acc, {T}), h_inverse = b.activation("h_inverse", acc, {T});
  const ValueId joined = b.activation("joined", compute, {T, 2 * H});
  const ValueId y = b.activation("y", compute, {T, H});
  const ValueId djoined = b.scratch("d(joined)", compute, {T, 2 * H});
  const ValueId de = b.activation("d(e)", compute, {T, H});
  const ValueId dh = b.gradient_of(h), dy = b.gradient_of(y);

  Piece& p = b.piece("project");
  p.forward.uses = {{all_tokens}, {embedding.value}, {h}, {norm_e.value}, {norm_h.value}, {w.value}};
  for (ValueId made : {tokens, e, e_inverse, h_inverse, joined, y}) p.forward.uses.push_back({made, Access::write});
  p.forward.run = [=](const Run& r) {
    r.ops().shift(r.stream(), {r[all_tokens], r[tokens], {}, depth, 0, length});
    r.ops().embedding(r.stream(), {r[tokens], r[embedding.value], r[e]});
    const Tensor both = r[joined];
    r.ops().rms_norm(r.stream(), {r[e], r[norm_e.value], both.slice_columns(0, H), r[e_inverse], 1, eps, zero_centred});
    r.ops().rms_norm(r.stream(), {r[h], r[norm_h.value], both.slice_columns(H, H), r[h_inverse], 1, eps, zero_centred});
    r.ops().matmul(r.stream(), {both, r[w.value], r[y], Transposed::no, Transposed::yes});
  };

  p.backward.uses = {{dy},           {tokens},  {embedding.value}, {h},        {norm_e.value},
                     {norm_h.value}, {w.value}, {e_inverse},       {h_inverse}};
  for (ValueId made : {again, djoined, de}) p.backward.uses.push_back({made, Access::write});
  for (ValueId made : {dh, norm_e.gradient, norm_h.gradient}) p.backward.uses.push_back({made, Access::add});
  p.backward.run = [=](const Run& r) {
    r.ops().embedding(r.stream(), {r[tokens], r[embedding.value], r[again]});  // cheaper than keeping it
    r.ops().matmul(r.stream(), {r[dy], r[w.value], r[djoined]});
    const Tensor d = r[djoined], from_e = d.slice_columns(0, H), from_h = d.slice_columns(H, H);
    r.ops().rms_norm_backward(r.stream(), {r[again], r[norm_e.value], r[e_inverse], from_e, r[de], Tensor{},
                                           r[norm_e.gradient], 1, zero_centred, r.store(norm_e.gradient)});
    const Tensor before = r.store(dh) == Store::add ? r[dh] : Tensor{};
    r.ops().rms_norm_backward(r.stream(), {r[h], r[norm_h.value], r[h_inverse], from_h, r[dh], before,
                                           r[norm_h.gradient], 1, zero_centred, r.store(norm_h.gradient)});
  };

  p.weight_gradient = {
      {{dy}, {joined}, {tokens}, {de}, {w.gradient, Access::add}, {embedding.gradient, Access::add}},
      [=](const Run& r) {
        r.ops().matmul(r.stream(),
                       {r[dy], r[joined], r[w.gradient], Transposed::yes, Transposed::no, r.store(w.gradient)});
        r.ops().embedding_gradient(r.stream(), {r[tokens], r[de], r[embedding.gradient], r.store(embedding.gradient)});
      }};
  return y;
}

}  // namespace weft
