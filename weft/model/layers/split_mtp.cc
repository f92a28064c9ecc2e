// The input of an MTP depth (mtp.cc) on several tensor ranks, which divide W by rows:
//
//   lookup, lookup_sum  e, the embedding of the later token
//   norm                joined = [norm_e(e) | norm_h(h)] of this rank's tokens; backward: d(e), and its part of d(h)
//   gather              all_gather joined; backward: the sum over ranks of d(joined)
//   project             this rank's columns of y for all tokens, the others zero
//   gather_again        backward only: joined of all tokens for the weight gradient
//   scatter             the sum of the columns; backward: all_gather dy
// As in other layers, without sequence parallelism nothing is gathered, and sums are whole (residual_block_cut.cc).
#include "weft/device/operations.h"
#include "weft/model/layers/split_vocabulary.h"
#include "weft/model/layers/tensor_transfers.h"
#include "weft/model/layers/weighted.h"

namespace weft {

namespace {

struct SplitInput {
  TensorRanks ranks;
  Range counted, columns;  // of the tokens here; of y
  std::int64_t H = 0;
  Norm norm_e, norm_h;
  Linear w;
  ValueId h, e, e_inverse, h_inverse, joined, all_joined, joined_again, partial, y;
  ValueId dy, all_dy, djoined, djoined_sum, de, dh, unused;

  Tensor of_e(const Tensor& both) const { return both.slice_columns(0, H); }
  Tensor of_h(const Tensor& both) const { return both.slice_columns(H, H); }
  Tensor own(const Tensor& all) const { return all.slice_columns(columns.first, columns.count); }
};

void add_parameters(ModuleBuilder& b, SplitInput& v) {
  v.norm_e = add_norm(b, "embedding_norm_weight", Role::mtp_embedding_norm, v.H);
  v.norm_h = add_norm(b, "hidden_norm_weight", Role::mtp_hidden_norm, v.H);
  v.w = {b.parameter("weight", {v.columns.count, 2 * v.H},
                     {b.tensor_part(Role::mtp_projection, {v.H, 2 * v.H}, 0, b.matrix_init())})};
}

void add_values(ModuleBuilder& b, SplitInput& v) {
  const std::int64_t R = b.stream_tokens();
  const DType compute = b.compute(), acc = b.accumulate();
  const Shape all{b.tokens(), v.H}, all_both{b.tokens(), 2 * v.H};
  const bool sequence = v.ranks.sequence;
  v.e = b.activation("e", compute, {R, v.H});
  v.e_inverse = b.activation("e_inverse", acc, {R});
  v.h_inverse = b.activation("h_inverse", acc, {R});
  v.joined = b.activation("joined", compute, {R, 2 * v.H});
  v.all_joined = sequence ? b.activation("all_joined", compute, all_both) : v.joined;
  v.joined_again = sequence ? b.activation("all_joined_again", compute, all_both) : v.joined;
  v.y = b.activation("y", compute, {R, v.H});
  v.partial = sequence ? b.activation("partial_y", compute, all) : v.y;
  v.djoined = b.activation("d(joined)", compute, all_both);
  v.djoined_sum = sequence ? b.activation("d(joined)_sum", compute, {R, 2 * v.H}) : v.djoined;
  v.de = b.gradient_of(v.e);
  v.dh = b.gradient_of(v.h);
  v.dy = b.gradient_of(v.y);
  v.all_dy = sequence ? b.activation("d(all_project)", compute, all) : v.dy;
  if (!sequence) v.unused = b.scratch("uncounted", acc, {v.H});
  for (const ValueId sum : {v.y, v.djoined_sum}) b.module().values[sum.index()].summed_over = v.ranks.group;
}

void add_norm_piece(ModuleBuilder& b, const SplitInput& v) {
  Piece& p = b.piece("norm");
  reads(p.forward, {v.e, v.h, v.norm_e.value, v.norm_h.value});
  writes(p.forward, {v.e_inverse, v.h_inverse, v.joined});
  p.forward.run = [v](const Run& r) {
    v.norm_e.forward(r, r[v.e], v.of_e(r[v.joined]), v.e_inverse);
    v.norm_h.forward(r, r[v.h], v.of_h(r[v.joined]), v.h_inverse);
  };
  reads(p.backward, {v.djoined_sum, v.e, v.h, v.norm_e.value, v.norm_h.value, v.e_inverse, v.h_inverse});
  writes(p.backward, {v.de});
  adds_to(p.backward, {v.dh, v.norm_e.gradient, v.norm_h.gradient});
  if (v.unused.valid()) writes(p.backward, {v.unused});
  p.backward.run = [v](const Run& r) {
    const Tensor d = r[v.djoined_sum], before = r.store(v.dh) == Store::add ? r[v.dh] : Tensor{};
    v.norm_e.backward(r, r[v.e], v.e_inverse, v.of_e(d), r[v.de], {}, v.counted, v.unused);
    v.norm_h.backward(r, r[v.h], v.h_inverse, v.of_h(d), r[v.dh], before, v.counted, v.unused);
  };
}

void add_project_piece(ModuleBuilder& b, const SplitInput& v) {
  Piece& p = b.piece("project");
  reads(p.forward, {v.all_joined, v.w.value});
  writes(p.forward, {v.partial});
  p.forward.run = [v](const Run& r) {
    r.ops().fill(r.stream(), {r[v.partial], 0});
    v.w.forward(r, r[v.all_joined], v.own(r[v.partial]));
  };
  reads(p.backward, {v.all_dy, v.w.value});
  writes(p.backward, {v.djoined});
  p.backward.run = [v](const Run& r) { v.w.backward(r, v.own(r[v.all_dy]), r[v.djoined]); };
  reads(p.weight_gradient, {v.all_dy, v.joined_again});
  adds_to(p.weight_gradient, {v.w.gradient});
  p.weight_gradient.run = [v](const Run& r) {
    r.ops().matmul(r.stream(), {v.own(r[v.all_dy]), r[v.joined_again], r[v.w.gradient], Transposed::yes, Transposed::no,
                                r.store(v.w.gradient)});
  };
}

}  // namespace

ValueId add_split_mtp_input(ModuleBuilder& b, int depth, ValueId h, ParameterValues embedding) {
  SplitInput v;
  v.ranks = b.tensor_ranks();
  v.counted = b.counted_tokens();
  v.H = b.config().hidden;
  v.columns = v.ranks.part_of(v.H);
  v.h = h;
  add_parameters(b, v);
  add_values(b, v);
  const std::vector<ValueId>& later = b.module().later_tokens;
  if (later.empty())
    add_split_lookup(b, embedding, b.module().tokens, depth, v.e, v.de);
  else
    add_split_lookup(b, embedding, later[static_cast<std::size_t>(depth - 1)], 0, v.e, v.de);
  add_norm_piece(b, v);
  Piece& gather = b.piece("gather", Lane::tensor);
  if (v.ranks.sequence) gather.forward = gathered(v.ranks, v.joined, v.all_joined);
  gather.backward = v.ranks.sequence ? scattered(v.ranks, v.djoined, v.djoined_sum) : summed(v.ranks, v.djoined);
  add_project_piece(b, v);
  if (v.ranks.sequence) b.piece("gather_again", Lane::tensor).backward = gathered(v.ranks, v.joined, v.joined_again);
  Piece& scatter = b.piece("scatter", Lane::tensor);
  scatter.forward = v.ranks.sequence ? scattered(v.ranks, v.partial, v.y) : summed(v.ranks, v.y);
  if (v.ranks.sequence) scatter.backward = gathered(v.ranks, v.dy, v.all_dy);
  return v.y;
}

}  // namespace weft
