// Multi-token prediction: the input of depth d. With h the hidden state of depth d - 1 after its final norm (depth 0:
// the main part), and e the embedding of the token d positions further on:
//   y = W [norm_e(e) | norm_h(h)]         W [H, 2 H]
// Embedding and head are the main part's. Where that token is beyond the end of the sequence, or of the document, token 0 replaces it; the
// position's label is not counted, and no earlier position sees it.
#include <fmt/format.h>

#include "weft/device/operations.h"
#include "weft/model/layers/layers.h"
#include "weft/model/layers/split_vocabulary.h"
#include "weft/model/layers/uses.h"
#include "weft/model/layers/weighted.h"

namespace weft {

namespace {

struct MtpInput {
  int depth = 0;
  std::int64_t H = 0, length = 0;
  ParameterValues embedding;
  Norm norm_e, norm_h;
  Linear w;
  ValueId boundaries;  // of documents; may be invalid
  ValueId all_tokens, h, tokens, e, e_again, e_inverse, h_inverse, joined, y;
  ValueId djoined, de, dh, dy;

  bool shifts() const { return all_tokens.valid(); }  // otherwise the host gives the later tokens
  Tensor of_e(const Tensor& both) const { return both.slice_columns(0, H); }
  Tensor of_h(const Tensor& both) const { return both.slice_columns(H, H); }
};

void add_parameters(ModuleBuilder& b, MtpInput& v) {
  v.norm_e = add_norm(b, "embedding_norm_weight", Role::mtp_embedding_norm, v.H);
  v.norm_h = add_norm(b, "hidden_norm_weight", Role::mtp_hidden_norm, v.H);
  const Shape shape{v.H, 2 * v.H};
  v.w = {b.parameter("weight", shape, {b.part(Role::mtp_projection, shape, b.matrix_init())})};
}

void add_values(ModuleBuilder& b, MtpInput& v) {
  const std::int64_t T = b.tokens(), H = v.H;
  const DType compute = b.compute(), acc = b.accumulate();
  v.boundaries = b.module().boundaries;
  const bool given = !b.module().later_tokens.empty();
  v.all_tokens = given ? ValueId{} : b.module().tokens;
  v.tokens =
      given ? b.module().later_tokens[static_cast<std::size_t>(v.depth - 1)] : b.activation("tokens", DType::i32, {T});
  v.e = b.scratch("e", compute, {T, H});
  v.e_again = b.scratch("e_again", compute, {T, H});
  v.e_inverse = b.activation("e_inverse", acc, {T});
  v.h_inverse = b.activation("h_inverse", acc, {T});
  v.joined = b.activation("joined", compute, {T, 2 * H});
  v.y = b.activation("y", compute, {T, H});
  v.djoined = b.scratch("d(joined)", compute, {T, 2 * H});
  v.de = b.activation("d(e)", compute, {T, H});
  v.dh = b.gradient_of(v.h);
  v.dy = b.gradient_of(v.y);
}

PieceCode forward(const MtpInput& v) {
  PieceCode f;
  reads(f, {v.all_tokens, v.embedding.value, v.h, v.norm_e.value, v.norm_h.value, v.w.value});
  if (v.shifts())
    reads(f, {v.boundaries}), writes(f, {v.tokens});
  else
    reads(f, {v.tokens});
  writes(f, {v.e, v.e_inverse, v.h_inverse, v.joined, v.y});
  f.run = [v](const Run& r) {
    const Tensor both = r[v.joined];
    if (v.shifts())
      r.ops().shift(r.stream(), {r[v.all_tokens], r[v.tokens], given(r, v.boundaries), v.depth, 0, v.length});
    r.ops().embedding(r.stream(), {r[v.tokens], r[v.embedding.value], r[v.e]});
    v.norm_e.forward(r, r[v.e], v.of_e(both), v.e_inverse);
    v.norm_h.forward(r, r[v.h], v.of_h(both), v.h_inverse);
    v.w.forward(r, both, r[v.y]);
  };
  return f;
}

PieceCode backward(const MtpInput& v) {
  PieceCode g;
  reads(g,
        {v.dy, v.tokens, v.embedding.value, v.h, v.norm_e.value, v.norm_h.value, v.w.value, v.e_inverse, v.h_inverse});
  writes(g, {v.e_again, v.djoined, v.de});
  adds_to(g, {v.dh, v.norm_e.gradient, v.norm_h.gradient});
  g.run = [v](const Run& r) {
    const Tensor d = r[v.djoined];
    r.ops().embedding(r.stream(), {r[v.tokens], r[v.embedding.value], r[v.e_again]});  // cheaper than keeping it
    v.w.backward(r, r[v.dy], d);
    v.norm_e.backward(r, r[v.e_again], v.e_inverse, v.of_e(d), r[v.de]);
    const Tensor before = r.store(v.dh) == Store::add ? r[v.dh] : Tensor{};
    v.norm_h.backward(r, r[v.h], v.h_inverse, v.of_h(d), r[v.dh], before);
  };
  return g;
}

PieceCode weight_gradient(const MtpInput& v) {
  PieceCode w;
  reads(w, {v.dy, v.joined, v.tokens, v.de});
  adds_to(w, {v.w.gradient, v.embedding.gradient});
  w.run = [v](const Run& r) {
    v.w.weight_gradient(r, v.dy, v.joined);
    r.ops().embedding_gradient(r.stream(),
                               {r[v.tokens], r[v.de], r[v.embedding.gradient], r.store(v.embedding.gradient)});
  };
  return w;
}

}  // namespace

ValueId add_mtp_input(ModuleBuilder& b, int depth, ValueId h, ParameterValues embedding) {
  b.enter(depth, -1, fmt::format("mtp{}.input", depth));
  b.next_unit();
  if (b.tensor_ranks().divide()) return add_split_mtp_input(b, depth, h, embedding);
  MtpInput v;
  v.depth = depth;
  v.H = b.config().hidden;
  v.length = b.options().length;
  v.embedding = embedding;
  v.h = h;
  add_parameters(b, v);
  add_values(b, v);
  Piece& p = b.piece("project");
  p.forward = forward(v);
  p.backward = backward(v);
  p.weight_gradient = weight_gradient(v);
  return v.y;
}

}  // namespace weft
