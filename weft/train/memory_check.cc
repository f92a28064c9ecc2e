#include "weft/train/memory_check.h"

#include <algorithm>

#include "weft/base/error.h"
#include "weft/base/text.h"

namespace weft {

namespace {

std::string bytes(std::int64_t count) { return human_bytes(static_cast<double>(count)); }

std::int64_t needed_by(Device& device, const SessionOptions& options) {
  const StepPlan step = plan_step(training_step(options));
  return count_memory(device, options, step.module, step.plan, step.memory).total();
}

std::int64_t evaluation_bytes(const SessionOptions& options) {
  const auto arena = [&](const EvaluationShape& shape) {
    return plan_step(evaluation_step(options, shape)).memory.arena;
  };
  return (options.validates ? arena({options.batch, options.length, false}) : 0) +
         (options.samples ? arena({1, options.length, true}) : 0);
}

// Ranks that share a device ask before any of them has taken its part. A GPU's memory is taken at once; a CPU's page by
// page, when it is touched, and of arenas, which have room for the worst routing, much never is. So of a CPU's other ranks
// only what they keep counts.
std::size_t free_for_rank(Device& device, const SessionOptions& options, const MemoryPlan& plan) {
  const std::size_t free = device.free_bytes(), ranks = static_cast<std::size_t>(options.ranks.on_device);
  if (device.asynchronous()) return free / ranks;
  return free - std::min(free, (ranks - 1) * static_cast<std::size_t>(plan.weights + plan.gradients + plan.states));
}

// One option changed, and what it is called.
struct Change {
  std::string flag;
  SessionOptions options;
};

std::vector<Change> changes_of(const SessionOptions& options) {
  std::vector<Change> changes;
  const auto change = [&](const std::string& flag) -> SessionOptions& {
    changes.push_back({flag, options});
    return changes.back().options;
  };
  if (options.batch > 1) {
    SessionOptions& o = change(fmt::format("--micro-batch-size {}", options.batch / 2));
    o.batch = options.batch / 2;
    o.plan.micro_batches = 2 * options.plan.micro_batches;
  }
  if (options.precision.compute == DType::f32) change("--bf16").precision.compute = DType::bf16;
  if (options.precision.compute == DType::bf16 && !options.precision.bf16_gradients)
    change("--grad-reduce-in-bf16").precision.bf16_gradients = true;
  for (const ShardingStrategy strategy : {ShardingStrategy::optim, ShardingStrategy::optim_grads_params})
    if (options.layout.ranks() > 1 && options.updates() && options.sharding < strategy)
      change(fmt::format("--data-parallel-sharding-strategy {}", name_of(strategy))).sharding = strategy;
  if (options.plan.weave && !options.plan.early_attention_backward)
    change("--ep-overlap-early-attn-memory-release").plan.early_attention_backward = true;
  if (options.plan.weave) {
    SessionOptions& o = change("no --overlap-moe-expert-parallel-comm");
    o.plan.weave = o.plan.early_attention_backward = false;
  }
  if (options.length > 1) change(fmt::format("--seq-length {}", options.length / 2)).length = options.length / 2;
  return changes;
}

}  // namespace

MemoryNeed count_memory(Device& device, const SessionOptions& options, const Module& module, const Plan& plan,
                        MemoryPlan memory) {
  MemoryNeed need;
  need.plan = std::move(memory);
  need.evaluation = evaluation_bytes(options);
  need.streams = stream_memory(module, plan, device, options.ranks.parallel && device.asynchronous());
  need.library_bytes = static_cast<std::int64_t>(device.library_bytes());
  return need;
}

void require_memory(Device& device, const SessionOptions& options, const MemoryNeed& need) {
  const std::size_t free = free_for_rank(device, options, need.plan);
  if (static_cast<std::size_t>(need.total()) <= free) return;
  const MemoryPlan& plan = need.plan;
  const std::int64_t own = need.total() - plan.total() - need.evaluation;
  std::string less;
  for (const Change& change : changes_of(options)) {
    const std::int64_t needed = needed_by(device, change.options);
    const bool fits = static_cast<std::size_t>(needed) <= free;
    constexpr double least = 0.02;  // of all: advice that saves less is not worth giving
    if (!fits && static_cast<double>(needed) > (1 - least) * static_cast<double>(need.total())) continue;
    less += fmt::format("\n  {}: {}{}", change.flag, bytes(needed), fits ? ", which fits" : "");
  }
  throw UserError(
      "a step needs {} of memory{}, and {} has {} free{}: weights {}, gradients {}, optimizer {}, activations {}, "
      "inputs and tables {}{}{}.{}",
      bytes(need.total()), options.layout.ranks() > 1 ? " per rank" : "", device.name(),
      human_bytes(static_cast<double>(free)),
      options.ranks.on_device == 1 ? ""
      : device.asynchronous()      ? " for each of its ranks"
                                   : " beside its other ranks",
      bytes(plan.weights), bytes(plan.gradients), bytes(plan.states), bytes(plan.activations), bytes(plan.step),
      need.evaluation > 0 ? fmt::format(", validation {}", bytes(need.evaluation)) : "",
      own > 0 ? fmt::format(", what operations and libraries work in {}", bytes(own)) : "",
      less.empty() ? " A smaller model would need less" : " Needed with" + less);
}

}  // namespace weft
