#include "weft/train/evaluator.h"

#include <algorithm>

#include "weft/base/error.h"

namespace weft {

Evaluator::Evaluator(std::int64_t batch, std::int64_t length, const StepInputs& inputs, Stream& stream,
                     const RankExchange& ranks, MakeEvaluation make, CountLabels count)
    : batch_(batch),
      length_(length),
      inputs_(inputs),
      stream_(stream),
      ranks_(ranks),
      make_(std::move(make)),
      count_(std::move(count)) {}

const EvaluationPlan& Evaluator::plan_for(const EvaluationShape& shape) {
  for (const auto& [known, made] : plans_)
    if (known == shape) return *made;
  plans_.emplace_back(shape, make_(shape));
  return *plans_.back().second;
}

void Evaluator::run(const EvaluationPlan& evaluation, const MicroBatch& batch, const StepNumbers& numbers) {
  inputs_.write(*evaluation.plan, std::span(&batch, 1), numbers);
  run_serially(*evaluation.plan, stream_);
}

EvaluationLosses Evaluator::losses(const MicroBatch& batch) {
  const EvaluationPlan& evaluation = plan_for({batch_, length_, false});
  StepNumbers numbers;
  if (count_) numbers.counted_labels = count_(batch);
  run(evaluation, batch, numbers);
  EvaluationLosses losses;
  if (count_) losses.weight = static_cast<double>(numbers.counted_labels);
  losses.loss = evaluation.plan->read(stream_, evaluation.module.loss)[0];
  for (ValueId loss : evaluation.module.mtp_losses)
    losses.mtp_losses.push_back(evaluation.plan->read(stream_, loss)[0] / inputs_.mtp_factor(evaluation.module));
  return losses;
}

// [tokens, rows of the vocabulary]. Context ranks have some of the tokens, tensor ranks columns, of which the last may be
// padding.
std::vector<double> Evaluator::read_logits(const EvaluationPlan& evaluation) const {
  std::vector<double> all = evaluation.plan->read(stream_, evaluation.module.logits, 0);
  const Shape& shape = evaluation.module.value(evaluation.module.logits).shape;
  if (shape.dims() == 2) return all;
  // [context ranks x tensor ranks, tokens, columns]
  const Layout& layout = evaluation.module.layout;
  const ContextRanks context = ContextRanks::of(layout);
  const std::int64_t tensor = shape[0] / context.size, tokens = shape[1] * context.size, each = shape[2],
                     rows = inputs_.embedding_rows();
  std::vector<double> joined(static_cast<std::size_t>(tokens * rows));
  for (std::int64_t rank = 0; rank < shape[0]; ++rank)
    for (std::int64_t t = 0; t < shape[1]; ++t) {
      const std::int64_t first = rank % tensor * each,
                         token = context.token(rank / tensor, t, evaluation.module.length);
      const auto from = all.begin() + (rank * shape[1] + t) * each;
      std::copy(from, from + std::clamp<std::int64_t>(rows - first, 0, each), joined.begin() + token * rows + first);
    }
  return joined;
}

std::vector<double> Evaluator::batch_logits(const MicroBatch& batch) {
  const EvaluationPlan& evaluation = plan_for({batch_, length_, true});
  run(evaluation, batch);
  if (!evaluation.module.logits.valid()) return {};
  return read_logits(evaluation);
}

std::vector<double> Evaluator::logits(std::span<const std::int32_t> tokens) {
  WEFT_CHECK(!tokens.empty() && std::ssize(tokens) <= length_, "{} tokens of at most {}", tokens.size(), length_);
  // One plan for all lengths: causal layers never look past the last token, and experts drop none, so what follows it
  // does not matter.
  const EvaluationPlan& evaluation = plan_for({1, length_, true});
  MicroBatch batch;
  batch.batch = 1;
  batch.length = length_;
  batch.tokens.assign(tokens.begin(), tokens.end());
  batch.tokens.resize(static_cast<std::size_t>(length_), 0);
  batch.labels.assign(batch.tokens.size(), -1);
  run(evaluation, batch);
  // Of several stages the last one has them.
  const Layout& layout = evaluation.module.layout;
  std::vector<double> all;
  if (evaluation.module.logits.valid()) all = read_logits(evaluation);
  if (layout.stage_count() > 1) {
    all.resize(static_cast<std::size_t>(length_ * inputs_.embedding_rows()));
    ranks_.spread(layout.seen_from(RankId(0)).members_of(layout.stages()).back(),
                  std::as_writable_bytes(std::span(all)));
  }
  all.resize(tokens.size() * (all.size() / static_cast<std::size_t>(length_)));
  return all;
}

}  // namespace weft
