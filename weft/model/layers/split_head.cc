// The head of several tensor ranks, each with rows of the vocabulary, in slices of tokens:
//
//   gather        all_gather x, where ranks have different tokens
//   logits.k      of slice k; for each token what other ranks must know of them: the statistics
//   statistics.k  all_gather them
//   loss.k        the loss, and the gradients of the slice's logits, of its input and of the weight
//   scatter       the sum over ranks of the gradient of the input
//   add           adds it to d(x)
//
// The statistics of one slice travel while the logits of the next are computed: logits.0, statistics.0, logits.1,
// statistics.1, loss.0, logits.2, ... All of it runs in the forward pass, as on one rank (head.cc).
#include <algorithm>

#include <fmt/format.h>

#include "weft/device/operations.h"
#include "weft/model/layers/split_vocabulary.h"
#include "weft/model/layers/tensor_transfers.h"

namespace weft {

namespace {

struct SplitHead {
  SplitVocabulary split;
  ParameterValues w;
  int depth = 0;
  std::int64_t T = 0, S = 0;  // tokens, tokens per slice
  std::int64_t length = 0;
  Range
      counted;  // of the columns of this rank's logits, those below the vocabulary's size, and their first one's number
  ValueId x, dx, all_x, all_dx, dx_sum, given_labels, labels, loss, scales;
  ValueId boundaries;  // of documents, where labels are shifted within them
  ValueId kept;        // all logits that are here, where an evaluation keeps them

  bool main() const { return depth == 0; }
  bool shifts() const { return labels != given_labels; }
  const TensorRanks& ranks() const { return split.ranks; }
};

struct Slice {
  std::int64_t number = 0, begin = 0, count = 0;
  ValueId logits, statistics, all_statistics, dlogits;
};

SplitHead described(ModuleBuilder& b, ValueId x, ParameterValues w, int depth) {
  SplitHead v;
  v.split = split_vocabulary(b);
  v.w = w;
  v.depth = depth;
  v.T = b.tokens();
  // Logits of two slices are there at a time.
  const std::int64_t row_bytes = 2 * v.split.rows * static_cast<std::int64_t>(size_of(b.accumulate()));
  const std::int64_t most = b.options().logits_slice_bytes;
  const std::int64_t slices = std::clamp<std::int64_t>((v.T * row_bytes + most - 1) / most, 1, v.T);
  v.S = (v.T + slices - 1) / slices;
  v.length = b.options().length;
  const Range part = v.split.part;
  v.counted = {part.first, std::clamp<std::int64_t>(b.config().vocabulary - part.first, 0, part.count)};
  v.x = x;
  Module& m = b.module();
  // On several context ranks the host gives each depth its labels.
  v.given_labels = v.main() || m.later_labels.empty() ? m.labels : m.later_labels[static_cast<std::size_t>(depth - 1)];
  v.loss = v.main() ? m.loss : m.mtp_losses[static_cast<std::size_t>(depth - 1)];
  v.scales = m.loss_scales;
  v.boundaries = v.main() ? ValueId{} : m.boundaries;
  return v;
}

void add_values(ModuleBuilder& b, SplitHead& v) {
  const std::int64_t H = b.config().hidden;
  const DType compute = b.compute();
  const auto sums = [&](ValueId value) { b.module().values[value.index()].summed_over = v.ranks().group; };
  v.labels =
      v.main() || v.given_labels != b.module().labels ? v.given_labels : b.activation("labels", DType::i32, {v.T});
  v.all_x = v.ranks().sequence ? b.activation("all_x", compute, {v.T, H}) : v.x;
  v.all_dx = b.activation("d(all_x)", compute, {v.T, H});
  v.dx_sum = v.ranks().sequence ? b.activation("d(x)_sum", compute, {b.stream_tokens(), H}) : v.all_dx;
  sums(v.dx_sum);
  v.dx = b.gradient_of(v.x);
  if (!v.main() || !b.options().keep_logits) return;
  v.kept = b.activation("logits_here", b.accumulate(), {v.T, v.split.rows});
  b.module().logits = b.value(
      {"logits", ValueKind::output, b.accumulate(), {v.ranks().size * b.context_ranks().size, v.T, v.split.rows}});
}

Slice add_slice(ModuleBuilder& b, const SplitHead& v, std::int64_t number) {
  Slice s;
  s.number = number;
  s.begin = number * v.S;
  s.count = std::min(v.S, v.T - s.begin);
  const auto name = [&](const char* what) { return fmt::format("{}.{}", what, number); };
  const DType acc = b.accumulate(), compute = b.compute();
  s.logits = b.activation(name("logits"), acc, {s.count, v.split.rows});
  s.statistics = b.activation(name("statistics"), DType::f64, {s.count, 3});
  s.all_statistics = b.activation(name("all_statistics"), DType::f64, {v.ranks().size, s.count, 3});
  s.dlogits = b.scratch(name("d(logits)"), compute, {s.count, v.split.rows});
  return s;
}

void compute_logits(const Run& r, const SplitHead& v, const Slice& s) {
  if (v.shifts() && s.number == 0)
    r.ops().shift(r.stream(), {r[v.given_labels], r[v.labels], given(r, v.boundaries), v.depth, -1, v.length});
  r.ops().matmul(r.stream(),
                 {r[v.all_x].slice_rows(s.begin, s.count), r[v.w.value], r[s.logits], Transposed::no, Transposed::yes});
  r.ops().vocabulary_statistics(r.stream(), {r[s.logits], r[v.labels].slice_rows(s.begin, s.count), r[s.statistics],
                                             v.counted.first, v.counted.count});
}

void add_loss(const Run& r, const SplitHead& v, const Slice& s, const Tensor& dlogits) {
  const Tensor labels = r[v.labels].slice_rows(s.begin, s.count), scale = r[v.scales].slice_rows(v.depth, 1);
  r.ops().split_cross_entropy(r.stream(), {r[s.logits], labels, scale, r[s.all_statistics], r[v.loss], dlogits,
                                           v.counted.first, v.counted.count, r.store(v.loss)});
}

void train(const Run& r, const SplitHead& v, const Slice& s) {
  add_loss(r, v, s, r[s.dlogits]);
  r.ops().matmul(r.stream(), {r[s.dlogits], r[v.w.value], r[v.all_dx].slice_rows(s.begin, s.count)});
  r.ops().matmul(r.stream(), {r[s.dlogits], r[v.all_x].slice_rows(s.begin, s.count), r[v.w.gradient], Transposed::yes,
                              Transposed::no, r.store(v.w.gradient)});
}

Piece& add_part(ModuleBuilder& b, const std::string& name, Lane lane = Lane::compute) {
  Piece& p = b.piece(name, lane);
  p.place.section = Section::head_part;
  return p;
}

void add_logits_pieces(ModuleBuilder& b, const SplitHead& v, const Slice& s) {
  Piece& p = add_part(b, fmt::format("logits.{}", s.number));
  if (!v.ranks().sequence) p.place.section = Section::head;
  reads(p.forward, {v.all_x, v.w.value});
  writes(p.forward, {s.logits, s.statistics});
  if (!v.shifts() || s.number > 0) {
    reads(p.forward, {v.labels});
  } else {
    reads(p.forward, {v.given_labels, v.boundaries});
    writes(p.forward, {v.labels});
  }
  p.evaluate.uses = p.forward.uses;
  p.forward.run = [v, s](const Run& r) { compute_logits(r, v, s); };
  if (v.kept.valid()) adds_to(p.evaluate, {v.kept});
  p.evaluate.run = [v, s](const Run& r) {
    compute_logits(r, v, s);
    if (v.kept.valid()) r.ops().cast(r.stream(), {r[s.logits], r[v.kept].slice_rows(s.begin, s.count)});
  };
  Piece& statistics = add_part(b, fmt::format("statistics.{}", s.number), Lane::tensor);
  statistics.forward = gathered(v.ranks(), s.statistics, s.all_statistics);
}

// Every slice adds to d(all_x), each its own rows.
void add_loss_piece(ModuleBuilder& b, const SplitHead& v, const Slice& s) {
  Piece& p = add_part(b, fmt::format("loss.{}", s.number));
  reads(p.forward, {s.logits, s.all_statistics, v.labels, v.scales});
  adds_to(p.forward, {v.loss});
  p.evaluate.uses = p.forward.uses;
  p.evaluate.run = [v, s](const Run& r) { add_loss(r, v, s, {}); };
  reads(p.forward, {v.all_x, v.w.value});
  writes(p.forward, {s.dlogits});
  adds_to(p.forward, {v.all_dx, v.w.gradient});
  p.forward.run = [v, s](const Run& r) { train(r, v, s); };
}

void add_input_gradient(ModuleBuilder& b, const SplitHead& v) {
  Piece& scatter = add_part(b, "scatter", Lane::tensor);
  scatter.only_in_training = true;
  scatter.forward = v.ranks().sequence ? scattered(v.ranks(), v.all_dx, v.dx_sum) : summed(v.ranks(), v.all_dx);
  Piece& p = add_part(b, "add");
  p.only_in_training = true;
  reads(p.forward, {v.dx_sum});
  adds_to(p.forward, {v.dx});
  p.forward.run = [v](const Run& r) {
    if (r.store(v.dx) == Store::write)
      r.ops().cast(r.stream(), {r[v.dx_sum], r[v.dx]});
    else
      r.ops().add(r.stream(), {r[v.dx], r[v.dx_sum], r[v.dx]});
  };
}

}  // namespace

void add_split_head(ModuleBuilder& b, ValueId x, ParameterValues w, int depth) {
  SplitHead v = described(b, x, w, depth);
  add_values(b, v);
  if (v.ranks().sequence) {
    Piece& gather = add_part(b, "gather", Lane::tensor);
    gather.place.section = Section::head;
    gather.forward = gathered(v.ranks(), v.x, v.all_x);
  }
  std::vector<Slice> slices;
  for (std::int64_t k = 0; k * v.S < v.T; ++k) {
    slices.push_back(add_slice(b, v, k));
    add_logits_pieces(b, v, slices.back());
    if (k > 0) add_loss_piece(b, v, slices[static_cast<std::size_t>(k - 1)]);
  }
  add_loss_piece(b, v, slices.back());
  add_input_gradient(b, v);
  if (!v.kept.valid()) return;
  Piece& gather = add_part(b, "gather_logits", Lane::tensor);
  TensorRanks all = v.ranks();
  all.group = b.options().layout.sample_ranks();  // tensor ranks first, then context ranks
  gather.evaluate = gathered(all, v.kept, b.module().logits);
}

}  // namespace weft
