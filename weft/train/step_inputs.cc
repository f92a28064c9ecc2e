#include "weft/train/step_inputs.h"

#include <algorithm>
#include <cmath>

#include "weft/base/error.h"
#include "weft/device/operations/optimizer.h"
#include "weft/train/token_check.h"

namespace weft {

StepInputs::StepInputs(const ModelConfig& config, const OptimizerSpec& optimizer, const Layout& layout)
    : config_(config), optimizer_(optimizer), data_ranks_(static_cast<double>(layout.size_of(layout.data_ranks()))) {}

double StepInputs::mtp_factor(const Module& module) const {
  return config_.mtp_loss_factor / static_cast<double>(module.mtp_losses.size());
}

void StepInputs::write(const PreparedPlan& plan, std::span<const MicroBatch> batches,
                       const StepNumbers& numbers) const {
  const Module& module = plan.module();
  const auto micro_batches = static_cast<double>(batches.size());
  std::int64_t counted = -1;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const MicroBatch& batch = batches[i];
    const int micro_batch = static_cast<int>(i);
    const std::int64_t here = copy_checked(batch, config_.vocabulary, plan.input_ints(module.tokens, micro_batch),
                                           plan.input_ints(module.labels, micro_batch));
    WEFT_CHECK(counted < 0 || counted == here, "micro-batches count {} and {} tokens", counted, here);
    counted = here;
    if (module.mtp_losses.empty()) continue;
    // As in the main loss: within a micro-batch, every token that the depth predicts counts the same.
    const std::span<double> scales = plan.input_doubles(module.mtp_scales, micro_batch);
    std::int64_t predicted = here;
    for (std::size_t d = 0; d < scales.size(); ++d) {
      predicted -= counted_labels_at(batch, static_cast<std::int64_t>(d));
      scales[d] = mtp_factor(module) /
                  (static_cast<double>(std::max<std::int64_t>(predicted, 1)) * micro_batches * data_ranks_);
    }
  }
  write_numbers(plan, numbers,
                1.0 / (static_cast<double>(std::max<std::int64_t>(counted, 1)) * micro_batches) / data_ranks_);
}

void StepInputs::write_zeros(const PreparedPlan& plan, int micro_batch) const {
  const Module& module = plan.module();
  for (ValueId tokens : {module.tokens, module.labels}) {
    const std::span<std::int32_t> zeros = plan.input_ints(tokens, micro_batch);
    std::fill(zeros.begin(), zeros.end(), 0);
  }
  write_numbers(plan, {}, 1);
  if (module.mtp_losses.empty()) return;
  const std::span<double> ones = plan.input_doubles(module.mtp_scales, micro_batch);
  std::fill(ones.begin(), ones.end(), 1.0);
}

void StepInputs::write_numbers(const PreparedPlan& plan, const StepNumbers& numbers, double loss_scale) const {
  const std::span<double> values = plan.input_doubles(plan.module().step_values);
  const auto t = static_cast<double>(numbers.step);
  values[StepValues::learning_rate] = numbers.learning_rate;
  values[StepValues::weight_decay] = numbers.weight_decay;
  values[StepValues::correction1] = 1 - std::pow(optimizer_.beta1, t);
  values[StepValues::correction2] = 1 - std::pow(optimizer_.beta2, t);
  values[StepValues::loss_scale] = loss_scale;
  values[StepValues::router_loss_scale] = 1.0 / (static_cast<double>(plan.plan().micro_batches) * data_ranks_);
}

}  // namespace weft
