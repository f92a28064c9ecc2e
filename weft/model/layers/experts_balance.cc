#include "weft/model/layers/experts_balance.h"

#include <algorithm>
#include <cmath>

#include "weft/device/operations.h"

namespace weft {

RouterBalance::RouterBalance(ModuleBuilder& b, const ExpertsSpec& spec, ValueId scores, ValueId logits, ValueId indices,
                             ValueId weights, ValueId expert_bias)
    : spec_(spec.balance),
      router_(spec.router),
      experts_(spec.experts),
      batch_(b.options().batch),
      ranks_(b.tensor_ranks()),
      tokens_(ranks_.part_of(b.tokens())),
      scores_(scores),
      logits_(logits),
      indices_(indices),
      weights_(weights),
      kept_(indices) {
  Module& m = b.module();
  const std::int64_t T = tokens_.count, E = experts_, k = router_.k,
                     length = b.options().length / b.context_ranks().size;
  sequences_ = {tokens_.first / length, std::max<std::int64_t>(1, T / length)};
  if (spec_.capacity_factor > 0) {
    // A token goes to an expert at most once, so no expert needs more rows than there are tokens.
    const double rows = std::ceil(static_cast<double>(T * k) / static_cast<double>(E) * spec_.capacity_factor);
    capacity_ = static_cast<std::int64_t>(std::min(rows, static_cast<double>(T)));
    drops_ = capacity_ < T;
    padded_ = spec_.pad_to_capacity;
    if (drops_) kept_ = b.scratch("kept", DType::i32, {T, k});
  }
  plain_ = router_.groups == 1 && !expert_bias.valid();
  step_ = m.step_values;
  if (spec_.aux_loss > 0) {
    batch_counts_ = b.activation("batch_counts", DType::f64, {1, E});
    balance_.push_back({spec_.aux_loss, batch_counts_, {0, 1}, RouterLoss::aux});
  }
  if (spec_.sequence_aux_loss > 0) {
    sequence_counts_ = b.activation("sequence_counts", DType::f64, {batch_, E});
    balance_.push_back({spec_.sequence_aux_loss, sequence_counts_, sequences_, RouterLoss::sequence_aux});
  }
  if (spec_.global_aux_loss > 0) {
    running_ = b.running("counts_so_far", DType::f64, {1, E});
    before_ = b.before(running_);
    snapshot_ = running_;
    if (b.summed_over_tokens().valid()) snapshot_ = b.activation("counts_of_all", DType::f64, {1, E});
    balance_.push_back({spec_.global_aux_loss, snapshot_, {0, 1}, RouterLoss::global_aux});
  }
  if (!balance_.empty() || spec_.z_loss > 0) {
    losses_ = b.router_losses();
    row_ = b.router_row();
  }
  if (expert_bias.valid() && spec_.bias_update_rate > 0)
    bias_counts_ = b.balance_parameter(expert_bias, spec_.bias_update_rate);
}

void RouterBalance::add_evaluation(PieceCode& code) const {
  if (drops_) code.uses.push_back({kept_, Access::write});
}

void RouterBalance::add_forward(PieceCode& code) const {
  const auto use = [&](ValueId value, Access access) {
    if (value.valid()) code.uses.push_back({value, access});
  };
  add_evaluation(code);
  use(batch_counts_, Access::write);
  use(sequence_counts_, Access::write);
  use(before_, Access::read);
  use(running_, Access::add);
  use(bias_counts_, Access::add);
}

// Forced ones are of the whole micro-batch.
Tensor RouterBalance::logits(const Run& r) const {
  const Tensor all = r[logits_];
  return all.rows() == tokens_.count ? all : all.slice_rows(tokens_.first, tokens_.count);
}

void RouterBalance::drop(const Run& r) const {
  if (!drops_) return;
  r.ops().drop_choices(r.stream(), {spec_.drop_policy, r[indices_], r[weights_], r[kept_], experts_, capacity_});
}

void RouterBalance::count(const Run& r) const {
  const auto count = [&](ValueId counts, Range sequences) {
    const Tensor all = r[counts];
    if (sequences.count < all.rows()) r.ops().fill(r.stream(), {all, 0});
    r.ops().count_experts(
        r.stream(),
        {choices(r), r[scores_], all.slice_rows(sequences.first, sequences.count), {}, router_.k, sequences.count});
  };
  if (batch_counts_.valid()) count(batch_counts_, {0, 1});
  if (sequence_counts_.valid()) count(sequence_counts_, sequences_);
  if (running_.valid()) {
    const Store store = r.store(running_);
    r.ops().count_experts(r.stream(), {choices(r), r[scores_], r[running_],
                                       store == Store::write ? r[before_] : Tensor{}, router_.k, 1, store});
  }
  if (bias_counts_.valid())
    r.ops().count_experts(r.stream(), {r[kept_], {}, r[bias_counts_], {}, router_.k, 1, r.store(bias_counts_)});
}

void RouterBalance::add_statistics(ModuleBuilder& b) const {
  const GroupId others = b.options().layout.sample_ranks();  // have other tokens of the same samples
  if (b.options().layout.divides(others) && (batch_counts_.valid() || sequence_counts_.valid())) {
    Piece& sum = b.piece("token_counts", Lane::tensor);
    sum.only_in_training = true;
    for (const ValueId counts : {batch_counts_, sequence_counts_}) {
      if (!counts.valid()) continue;
      b.module().values[counts.index()].summed_over = others;
      sum.forward.uses.push_back({counts, Access::write});
      sum.forward.collectives.push_back({CollectiveKind::all_reduce, others, counts, counts, {}, {}});
    }
  }
  if (!snapshot_.valid() || snapshot_ == running_) return;
  Piece& piece = b.piece("statistics", Lane::reduce);
  piece.only_in_training = true;
  const GroupId group = b.summed_over_tokens();
  b.module().values[snapshot_.index()].summed_over = group;
  piece.forward.uses = {{running_}, {snapshot_, Access::write}};
  piece.forward.collectives = {{CollectiveKind::all_reduce, group, running_, snapshot_, {}, {}}};
}

void RouterBalance::add_backward(PieceCode& code) const {
  if (!losses_.valid()) return;
  if (spec_.z_loss > 0) code.uses.push_back({logits_});
  for (const Loss& loss : balance_) code.uses.push_back({loss.counts});
  code.uses.push_back({step_});
  code.uses.push_back({losses_, Access::add});
}

void RouterBalance::add_gradients(const Run& r, ValueId dlogits) const {
  if (!losses_.valid()) return;
  const Tensor scale = r[step_].slice_rows(StepValues::router_loss_scale, 1);
  const auto slot = [&](RouterLoss loss) {
    return r[losses_]
        .reshape({r[losses_].shape.elements()})
        .slice_rows(row_ * router_loss_count + static_cast<std::int64_t>(loss), 1);
  };
  if (r.store(losses_) == Store::write) r.ops().fill(r.stream(), {r[losses_], 0});
  for (const Loss& loss : balance_)
    r.ops().balance_losses(r.stream(), {router_.score,
                                        r[scores_],
                                        {},
                                        r[loss.counts].slice_rows(loss.sequences.first, loss.sequences.count),
                                        scale,
                                        r[dlogits],
                                        slot(loss.slot),
                                        {},
                                        loss.sequences.count,
                                        loss.coefficient,
                                        0,
                                        Store::add});
  if (spec_.z_loss > 0)
    r.ops().balance_losses(r.stream(), {router_.score,
                                        r[scores_],
                                        logits(r),
                                        {},
                                        scale,
                                        r[dlogits],
                                        {},
                                        slot(RouterLoss::z),
                                        1,
                                        0,
                                        spec_.z_loss,
                                        Store::add});
}

}  // namespace weft
