// Token embedding: y[t] = weight[tokens[t]].
#include "weft/device/operations.h"
#include "weft/model/layers/layers.h"
#include "weft/model/layers/split_vocabulary.h"
#include "weft/model/layers/tensor_transfers.h"

namespace weft {

SplitVocabulary split_vocabulary(const ModuleBuilder& b) {
  const std::int64_t rows = b.config().embedding_rows();
  return {b.tensor_ranks(), b.tensor_ranks().share(rows), b.tensor_ranks().part_of(rows)};
}

ParameterValues add_vocabulary_weight(ModuleBuilder& b, Role role) {
  const std::int64_t rows = b.config().embedding_rows(), H = b.config().hidden;
  return b.parameter("weight", {split_vocabulary(b).rows, H}, {b.tensor_part(role, {rows, H}, 0, b.matrix_init())});
}

void add_split_lookup(ModuleBuilder& b, ParameterValues w, ValueId tokens, int shift, ValueId y, ValueId dy) {
  const SplitVocabulary vocabulary = split_vocabulary(b);
  const TensorRanks& ranks = vocabulary.ranks;
  const Range part = vocabulary.part;
  const Shape all{b.tokens(), b.config().hidden};
  const std::int64_t length = b.options().length;
  const ValueId boundaries = shift > 0 ? b.module().boundaries : ValueId{};
  const ValueId local = b.activation("local_tokens", DType::i32, {b.tokens()});
  const ValueId partial = ranks.sequence ? b.activation("partial", b.compute(), all) : y;
  const ValueId all_dy = ranks.sequence ? b.activation("d(all_y)", b.compute(), all) : dy;
  b.module().values[y.index()].summed_over = ranks.group;

  Piece& p = b.piece("lookup");
  p.forward = {{{tokens}, {w.value}, {local, Access::write}, {partial, Access::write}}, [=](const Run& r) {
                 if (shift > 0)
                   r.ops().shift(r.stream(), {r[tokens], r[local], given(r, boundaries), shift, 0, length});
                 r.ops().local_tokens(r.stream(), {shift > 0 ? r[local] : r[tokens], r[local], part.first, part.count});
                 r.ops().embedding(r.stream(), {r[local], r[w.value], r[partial]});
               }};
  reads(p.forward, {boundaries});
  p.weight_gradient = {
      {{local}, {all_dy}, {w.gradient, Access::add}}, [=](const Run& r) {
        r.ops().embedding_gradient(r.stream(), {r[local], r[all_dy], r[w.gradient], r.store(w.gradient)});
      }};
  Piece& sum = b.piece("lookup_sum", Lane::tensor);
  if (ranks.sequence) {
    sum.forward = scattered(ranks, partial, y);
    sum.backward = gathered(ranks, dy, all_dy);
  } else {
    sum.forward = summed(ranks, y);
  }
}

ParameterValues add_embedding_weight(ModuleBuilder& b, bool on_both_ends) {
  b.enter(0, -1, "embedding");
  const ParameterValues w = add_vocabulary_weight(b, Role::embedding);
  if (on_both_ends) {
    const Layout& layout = b.options().layout;
    b.tensor(w).placement = layout.placement_of({.tensor_dim = 0, .on_both_ends = true});
    b.tensor(w).copy = layout.stage() > 0;
  }
  return w;
}

ValueId add_embedding(ModuleBuilder& b, ParameterValues w) {
  b.enter(0, -1, "embedding");
  b.next_unit();
  const ValueId tokens = b.module().tokens;
  const ValueId y = b.activation("y", b.compute(), {b.stream_tokens(), b.config().hidden});
  const ValueId dy = b.gradient_of(y);
  if (b.tensor_ranks().divide()) {
    add_split_lookup(b, w, tokens, 0, y, dy);
    return y;
  }
  Piece& p = b.piece("lookup");
  p.forward = {{{tokens}, {w.value}, {y, Access::write}}, [=](const Run& r) {
                 r.ops().embedding(r.stream(), {r[tokens], r[w.value], r[y]});
               }};
  p.weight_gradient = {{{tokens}, {dy}, {w.gradient, Access::add}}, [=](const Run& r) {
                         r.ops().embedding_gradient(r.stream(), {r[tokens], r[dy], r[w.gradient], r.store(w.gradient)});
                       }};
  return y;
}

}  // namespace weft
