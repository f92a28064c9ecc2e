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
      data_ranks_(static_cast<double>(layout.size_of(layout.data_ranks()))),
      routing_ranks_(data_ranks_ * static_cast<double>(layout.size_of(layout.tensor_ranks()))) {}

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
    const std::int64_t counted = copy_checked(batch, config_.vocabulary, plan.input_ints(module.tokens, micro_batch),
                                              plan.input_ints(module.labels, micro_batch));
    write_documents(plan, micro_batch, batch);
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

void StepInputs::write_zeros(const PreparedPlan& plan, int micro_batch) const {
  const Module& module = plan.module();
  for (ValueId tokens : {module.tokens, module.labels}) {
    const std::span<std::int32_t> zeros = plan.input_ints(tokens, micro_batch);
    std::fill(zeros.begin(), zeros.end(), 0);
  }
  write_documents(plan, micro_batch, {});
  const std::span<double> ones = plan.input_doubles(module.loss_scales, micro_batch);
  std::fill(ones.begin(), ones.end(), 1.0);
  write_numbers(plan, {});
}

void StepInputs::write_documents(const PreparedPlan& plan, int micro_batch, const MicroBatch& batch) const {
  const Module& module = plan.module();
  const std::int64_t length = module.length;
  const auto write = [&](ValueId value, const std::vector<std::int32_t>& told, auto of_one_document) {
    if (!plan.uses(value, micro_batch)) return;
    const std::span<std::int32_t> out = plan.input_ints(value, micro_batch);
    WEFT_CHECK(told.empty() || told.size() == out.size(), "documents of {} tokens for a step of {}", told.size(),
               out.size());
    for (std::size_t t = 0; t < out.size(); ++t)
      out[t] = told.empty() ? static_cast<std::int32_t>(of_one_document(static_cast<std::int64_t>(t))) : told[t];
  };
  write(module.boundaries, batch.boundaries, [=](std::int64_t t) { return t - t % length; });
  write(module.positions, batch.positions, [=](std::int64_t t) { return t % length; });
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
