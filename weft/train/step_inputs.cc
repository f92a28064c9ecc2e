#include "weft/train/step_inputs.h"

#include <algorithm>
#include <cmath>

#include "weft/base/error.h"
#include "weft/device/operations/optimizer.h"
#include "weft/train/token_check.h"

namespace weft {

StepInputs::StepInputs(const ModelConfig& config, const OptimizerSpec& optimizer, const Layout& layout)
    : config_(config),
      optimizer_(optimizer),
      context_(ContextRanks::of(layout)),
      data_ranks_(static_cast<double>(layout.size_of(layout.data_ranks()))),
      routing_ranks_(data_ranks_ * static_cast<double>(layout.size_of(layout.sample_ranks()))) {}

double StepInputs::mtp_factor(const Module& module) const {
  return config_.mtp_loss_factor / static_cast<double>(module.mtp_losses.size());
}

void StepInputs::write(const PreparedPlan& plan, std::span<const MicroBatch> batches,
                       const StepNumbers& numbers) const {
  const Module& module = plan.module();
  const auto micro_batches = static_cast<double>(batches.size());
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const MicroBatch& batch = batches[i];
    const int micro_batch = static_cast<int>(i);
    const std::int64_t counted = write_tokens(plan, micro_batch, batch);
    write_documents(plan, micro_batch, batch);
    if (!plan.uses(module.loss_scales, micro_batch)) continue;
    // Of a loss that sums over `labels` tokens of this micro-batch. A depth of MTP weighs as much of a step as the main part.
    const auto scale = [&](std::int64_t labels) {
      const auto tokens = static_cast<double>(std::max<std::int64_t>(labels, 1));
      if (numbers.counted_labels == 0) return 1.0 / (tokens * micro_batches) / data_ranks_;
      return static_cast<double>(counted) / tokens / static_cast<double>(numbers.counted_labels);
    };
    const std::span<double> scales = plan.input_doubles(module.loss_scales, micro_batch);
    scales[0] = scale(counted);
    for (std::size_t d = 1; d < scales.size(); ++d)
      scales[d] = mtp_factor(module) * scale(counted - counted_labels_before(batch, static_cast<std::int64_t>(d)));
  }
  write_numbers(plan, numbers);
}

// Returns how many labels count, on all context ranks.
std::int64_t StepInputs::write_tokens(const PreparedPlan& plan, int micro_batch, const MicroBatch& batch) const {
  const Module& module = plan.module();
  // A stage that reads no tokens, or no labels, counts them all the same.
  std::vector<std::int32_t> unread[2];
  const auto input = [&](ValueId value, std::size_t size, std::vector<std::int32_t>& instead) {
    if (plan.uses(value, micro_batch)) return plan.input_ints(value, micro_batch);
    instead.resize(size);
    return std::span(instead);
  };
  if (!context_.divide())
    return copy_checked(batch, config_.vocabulary, input(module.tokens, batch.tokens.size(), unread[0]),
                        input(module.labels, batch.labels.size(), unread[1]));
  check_tokens(batch, config_.vocabulary);
  write_part(plan, micro_batch, batch);
  return std::count_if(batch.labels.begin(), batch.labels.end(), [](std::int32_t label) { return label >= 0; });
}

// This context rank's tokens and labels, and for MTP depths those further on, which may be another rank's.
void StepInputs::write_part(const PreparedPlan& plan, int micro_batch, const MicroBatch& batch) const {
  const Module& module = plan.module();
  const std::int64_t length = module.length;
  if (plan.uses(module.tokens, micro_batch))
    WEFT_CHECK(std::ssize(batch.tokens) == std::ssize(plan.input_ints(module.tokens, micro_batch)) * context_.size,
               "{} tokens for {} context ranks", batch.tokens.size(), context_.size);
  const auto document = [&](std::int64_t token) {
    return batch.boundaries.empty() ? token - token % length : batch.boundaries[static_cast<std::size_t>(token)];
  };
  const auto write = [&](ValueId value, const std::vector<std::int32_t>& all, std::int64_t shift, std::int32_t beyond) {
    if (!plan.uses(value, micro_batch)) return;
    const std::span<std::int32_t> out = plan.input_ints(value, micro_batch);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::int64_t at = context_.token(context_.rank, static_cast<std::int64_t>(i), length), from = at + shift;
      const bool inside = from < std::ssize(all) && document(from) == document(at);
      out[i] = inside ? all[static_cast<std::size_t>(from)] : beyond;
    }
  };
  write(module.tokens, batch.tokens, 0, 0);
  write(module.labels, batch.labels, 0, -1);
  for (std::size_t d = 0; d < module.later_tokens.size(); ++d) {
    write(module.later_tokens[d], batch.tokens, static_cast<std::int64_t>(d) + 1, 0);
    write(module.later_labels[d], batch.labels, static_cast<std::int64_t>(d) + 1, -1);
  }
}

void StepInputs::write_zeros(const PreparedPlan& plan, int micro_batch) const {
  const Module& module = plan.module();
  const auto clear = [&](ValueId tokens) {
    if (!plan.uses(tokens, micro_batch)) return;
    const std::span<std::int32_t> zeros = plan.input_ints(tokens, micro_batch);
    std::fill(zeros.begin(), zeros.end(), 0);
  };
  for (ValueId tokens : {module.tokens, module.labels}) clear(tokens);
  for (const auto* later : {&module.later_tokens, &module.later_labels})
    std::for_each(later->begin(), later->end(), clear);
  write_documents(plan, micro_batch, {});
  write_numbers(plan, {});
  if (!plan.uses(module.loss_scales, micro_batch)) return;
  const std::span<double> ones = plan.input_doubles(module.loss_scales, micro_batch);
  std::fill(ones.begin(), ones.end(), 1.0);
}

void StepInputs::write_documents(const PreparedPlan& plan, int micro_batch, const MicroBatch& batch) const {
  const Module& module = plan.module();
  const std::int64_t length = module.length;
  const auto write = [&](ValueId value, const std::vector<std::int32_t>& told, auto token, auto of_one_document) {
    if (!plan.uses(value, micro_batch)) return;
    const std::span<std::int32_t> out = plan.input_ints(value, micro_batch);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::int64_t t = token(static_cast<std::int64_t>(i));
      WEFT_CHECK(told.empty() || t < std::ssize(told), "documents of {} tokens for a step that reads {}", told.size(),
                 t);
      out[i] = told.empty() ? static_cast<std::int32_t>(of_one_document(t)) : told[static_cast<std::size_t>(t)];
    }
  };
  const auto all = [](std::int64_t i) { return i; };
  const auto here = [&](std::int64_t i) { return context_.token(context_.rank, i, length); };
  const auto position = [=](std::int64_t t) { return t % length; };
  write(module.boundaries, batch.boundaries, all, [=](std::int64_t t) { return t - t % length; });
  write(module.positions, batch.positions, here, position);
  write(module.all_positions, batch.positions, all, position);
  if (!plan.uses(module.neighbour_positions, micro_batch)) return;
  const std::int64_t tokens = std::ssize(plan.input_ints(module.neighbour_positions, micro_batch)) /
                              module.layout.size_of(module.layout.head_ranks()) * context_.size;
  const std::vector<std::int64_t> neighbours = TokenRanks::of_heads(module.layout, tokens / length, length).in_order();
  write(
      module.neighbour_positions, batch.positions,
      [&](std::int64_t i) { return neighbours[static_cast<std::size_t>(i)]; }, position);
}

void StepInputs::write_numbers(const PreparedPlan& plan, const StepNumbers& numbers) const {
  if (!plan.uses(plan.module().step_values)) return;  // evaluation of a model without router losses
  const std::span<double> values = plan.input_doubles(plan.module().step_values);
  const auto t = static_cast<double>(numbers.step);
  values[StepValues::learning_rate] = numbers.learning_rate;
  values[StepValues::weight_decay] = numbers.weight_decay;
  values[StepValues::correction1] = 1 - std::pow(optimizer_.beta1, t);
  values[StepValues::correction2] = 1 - std::pow(optimizer_.beta2, t);
  values[StepValues::router_loss_scale] = 1.0 / (static_cast<double>(plan.plan().micro_batches) * routing_ranks_);
}

}  // namespace weft
