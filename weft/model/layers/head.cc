// Final norm, and the head with cross entropy.
//
// The head never holds all logits: it works on slices of tokens. For each slice it computes the loss, the gradient of
// its input and the weight gradient while it has the logits, so they are computed once. Its forward includes its
// backward.
#include <algorithm>

#include <fmt/format.h>

#include "weft/device/operations.h"
#include "weft/model/layers/layers.h"
#include "weft/model/layers/split_vocabulary.h"
#include "weft/model/layers/uses.h"
#include "weft/model/layers/weighted.h"

namespace weft {

namespace {

struct Head {
  ParameterValues w;
  int depth = 0;
  std::int64_t T = 0, S = 0;  // tokens, tokens per slice
  std::int64_t vocabulary = 0, length = 0;
  ValueId x, dx, next, labels, loss, scales, logits, dlogits;
  ValueId boundaries;  // of documents, where labels are shifted within them
  ValueId kept;        // all logits, where an evaluation keeps them

  bool main() const { return depth == 0; }
  bool shifts() const { return labels != next; }
  // Gradients of logits enter products in the model's dtype.
  bool narrow() const { return dlogits != logits; }
  // How a slice stores into a sum that the first slice began.
  static Store store(Store first, std::int64_t begin) { return begin == 0 ? first : Store::add; }
};

Head described(const ModuleBuilder& b, ValueId x, ParameterValues w, int depth) {
  const std::int64_t T = b.tokens(), V = b.config().embedding_rows();
  const std::int64_t row_bytes = V * static_cast<std::int64_t>(size_of(b.accumulate()));
  const std::int64_t slices = std::clamp<std::int64_t>(
      (T * row_bytes + b.options().logits_slice_bytes - 1) / b.options().logits_slice_bytes, 1, T);
  Head v;
  v.w = w;
  v.depth = depth;
  v.T = T;
  v.S = (T + slices - 1) / slices;
  v.vocabulary = b.config().vocabulary;
  v.length = b.options().length;
  v.x = x;
  return v;
}

void add_values(ModuleBuilder& b, Head& v) {
  const std::int64_t V = b.config().embedding_rows();
  const DType compute = b.compute(), acc = b.accumulate();
  Module& m = b.module();
  // What the main part predicts; on several context ranks the host gives each depth its labels.
  v.next = v.main() || m.later_labels.empty() ? m.labels : m.later_labels[static_cast<std::size_t>(v.depth - 1)];
  v.labels = v.main() || v.next != m.labels ? v.next : b.scratch("labels", DType::i32, {v.T});
  v.loss = v.main() ? m.loss : m.mtp_losses[static_cast<std::size_t>(v.depth - 1)];
  v.scales = m.loss_scales;
  v.boundaries = v.shifts() ? m.boundaries : ValueId{};
  v.logits = b.scratch("logits", acc, {v.S, V});
  v.dlogits = compute != acc ? b.scratch("d(logits)", compute, {v.S, V}) : v.logits;
  v.dx = b.gradient_of(v.x);
  if (!v.main() || !b.options().keep_logits) return;
  const std::int64_t ranks = b.context_ranks().size;
  m.logits = b.value({"logits", ValueKind::output, acc, ranks > 1 ? Shape{ranks, v.T, V} : Shape{v.T, V}});
  v.kept = ranks > 1 ? b.activation("logits_here", acc, {v.T, V}) : m.logits;
}

void make_labels(const Run& r, const Head& v) {
  if (v.shifts()) r.ops().shift(r.stream(), {r[v.next], r[v.labels], given(r, v.boundaries), v.depth, -1, v.length});
}

// The loss of n tokens from `begin` on; dlogits may be absent.
void add_loss(const Run& r, const Head& v, std::int64_t begin, std::int64_t n, const Tensor& logits,
              const Tensor& dlogits) {
  const Tensor labels = r[v.labels].slice_rows(begin, n), scale = r[v.scales].slice_rows(v.depth, 1);
  r.ops().cross_entropy(
      r.stream(), {logits, labels, scale, r[v.loss], dlogits, {}, v.vocabulary, Head::store(r.store(v.loss), begin)});
}

void train(const Run& r, const Head& v) {
  make_labels(r, v);
  for (std::int64_t begin = 0; begin < v.T; begin += v.S) {
    const std::int64_t n = std::min(v.S, v.T - begin);
    const Tensor rows = r[v.x].slice_rows(begin, n), logits = r[v.logits].slice_rows(0, n),
                 dlogits = r[v.dlogits].slice_rows(0, n);
    r.ops().matmul(r.stream(), {rows, r[v.w.value], logits, Transposed::no, Transposed::yes});
    add_loss(r, v, begin, n, logits, dlogits);
    r.ops().matmul(r.stream(), {dlogits, r[v.w.value], r[v.dx].slice_rows(begin, n), Transposed::no, Transposed::no,
                                r.store(v.dx)});
    r.ops().matmul(r.stream(), {dlogits, rows, r[v.w.gradient], Transposed::yes, Transposed::no,
                                Head::store(r.store(v.w.gradient), begin)});
  }
}

void evaluate(const Run& r, const Head& v) {
  make_labels(r, v);
  for (std::int64_t begin = 0; begin < v.T; begin += v.S) {
    const std::int64_t n = std::min(v.S, v.T - begin);
    const Tensor rows = r[v.x].slice_rows(begin, n), logits = r[v.logits].slice_rows(0, n);
    r.ops().matmul(r.stream(), {rows, r[v.w.value], logits, Transposed::no, Transposed::yes});
    if (v.kept.valid()) r.ops().cast(r.stream(), {logits, r[v.kept].slice_rows(begin, n)});
    add_loss(r, v, begin, n, logits, {});
  }
}

}  // namespace

ValueId add_final_norm(ModuleBuilder& b, ValueId x, int depth) {
  const std::int64_t T = b.stream_tokens(), H = b.config().hidden;
  b.enter(depth, -1, depth == 0 ? "final_norm" : fmt::format("mtp{}.final_norm", depth));
  if (depth == 0) b.next_unit();  // that of an MTP depth belongs to the unit of its last layer
  const Norm norm = add_norm(b, "weight", Role::final_norm, H);
  const ValueId y = b.activation("y", b.compute(), {T, H});
  const ValueId inverse = b.activation("inverse", b.accumulate(), {T});
  const ValueId dx = b.gradient_of(x), dy = b.gradient_of(y);
  const Range counted = b.counted_tokens();
  const ValueId unused = counted.count < T ? b.scratch("uncounted", b.accumulate(), {H}) : ValueId{};

  Piece& p = b.piece("norm");
  p.place.section = Section::final_norm;
  p.forward = {{{x}, {norm.value}, {y, Access::write}, {inverse, Access::write}},
               [=](const Run& r) { norm.forward(r, r[x], r[y], inverse); }};
  p.backward = {{{dy}, {x}, {inverse}, {norm.value}, {dx, Access::write}, {norm.gradient, Access::add}},
                [=](const Run& r) { norm.backward(r, r[x], inverse, r[dy], r[dx], {}, counted, unused); }};
  if (unused.valid()) p.backward.uses.push_back({unused, Access::write});
  return y;
}

void add_head(ModuleBuilder& b, ValueId x, ParameterValues w, int depth) {
  b.enter(depth, -1, depth == 0 ? "head" : fmt::format("mtp{}.head", depth));
  if (b.tensor_ranks().divide()) return add_split_head(b, x, w, depth);
  Head v = described(b, x, w, depth);
  add_values(b, v);

  Piece& p = b.piece("loss");
  p.place.section = Section::head;
  reads(p.forward, {x, w.value, v.next, v.scales, v.boundaries});
  writes(p.forward, {v.logits});
  adds_to(p.forward, {v.loss, v.dx, w.gradient});
  if (v.narrow()) writes(p.forward, {v.dlogits});
  if (v.shifts()) writes(p.forward, {v.labels});
  p.forward.run = [v](const Run& r) { train(r, v); };

  reads(p.evaluate, {x, w.value, v.next, v.scales, v.boundaries});
  writes(p.evaluate, {v.logits});
  adds_to(p.evaluate, {v.loss});
  if (v.shifts()) writes(p.evaluate, {v.labels});
  if (v.kept.valid()) writes(p.evaluate, {v.kept});
  p.evaluate.run = [v](const Run& r) { evaluate(r, v); };
  const ValueId all = b.module().logits;
  if (!v.kept.valid() || v.kept == all) return;
  Piece& gather = b.piece("gather_logits", Lane::tensor);
  gather.place.section = Section::head_part;
  gather.evaluate = {{{v.kept}, {all, Access::write}},
                     {},
                     {{CollectiveKind::all_gather, b.context_ranks().group, v.kept, all, {}, {}}}};
}

}  // namespace weft
