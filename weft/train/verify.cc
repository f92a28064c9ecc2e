#include "weft/train/verify.h"

#include <algorithm>
#include <cmath>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/train/data_source.h"

namespace weft {

void RunRecord::add(int step, const StepResult& result, Session& session) {
  const std::lock_guard lock(mutex_);
  StepRecord& record = steps_[static_cast<std::size_t>(step)];
  record.loss = result.loss;
  record.gradient_norm = result.gradient_norm;
  session.parameters().each(Content::weight, [&](const ParameterPart& part, const HostTensor& tensor) {
    if (!record.weights.add(part, tensor))
      throw RunError("after step {}: two ranks hold different values of {}", step + 1, to_text(part.identity));
  });
}

void run_recorded(const TrainOptions& o, const TrainEnvironment& environment, RunRecord& record) {
  const ModelConfig config = run_config(o);
  const RunData data = open_run_data(o, config.vocabulary);
  if (!data.splits.train) throw UserError("there is no training data: the split '{}' gives none to it", o.data.split);
  SessionOptions options = session_options(o, config, environment.world);
  options.ranks.on_device = environment.ranks_on_device;
  Session session(environment.device, options);
  load_parameters(session, o);
  const LearningRateSpec rates = learning_rate_spec(o);
  const WeightDecaySpec decays = weight_decay_spec(o);
  const Layout& layout = session.options().layout;
  std::int64_t consumed = 0;
  for (int step = 0; step < static_cast<int>(record.steps().size()); ++step) {
    std::vector<MicroBatch> batches;
    for (int m = 0; m < session.options().plan.micro_batches; ++m)
      batches.push_back(data.splits.train->sample_batch(consumed + layout.shard_of(m) * o.batch.micro_batch_size,
                                                        static_cast<int>(o.batch.micro_batch_size)));
    // The schedule may begin at zero; a step that moves nothing proves little.
    const double rate = std::max(learning_rate(rates, consumed), 0.1 * rates.lr);
    record.add(step, session.step(batches, rate, weight_decay(decays, consumed)), session);
    consumed += o.batch.global_batch_size;
  }
}

TrainOptions oracle_of(const TrainOptions& options) {
  TrainOptions oracle = options;
  oracle.execution.block = options.layout.data_parallel_size();  // what covers a micro-batch of all shards
  oracle.execution.inject_fault.clear();
  oracle.execution.ep_overlap_early_attn_memory_release = false;
  oracle.layout = {};
  oracle.layout.ranks = oracle.layout.expert_tensor_parallel_size = 1;
  oracle.execution.pipeline_order = OrderKind::automatic;
  oracle.execution.executor = ExecutorKind::serial;
  oracle.execution.overlap_moe_expert_parallel_comm = oracle.execution.delay_wgrad_compute = false;
  oracle.execution.overlap_dispatch_backward_with_experts_wgrad = oracle.execution.overlap_optimizer = false;
  oracle.execution.emulate_network.clear();
  oracle.sharding = {};
  oracle.recompute = {};
  return oracle;
}

std::string StepDifference::beyond(double tolerance) const {
  std::vector<std::string> parts;
  if (!(loss_difference <= tolerance)) parts.push_back("loss");
  if (!(norm_difference <= tolerance)) parts.push_back("gradient norm");
  if (!(weight_difference <= tolerance)) parts.push_back(worst_weight);
  return join(parts, ", ");
}

std::vector<StepDifference> compare(const RunRecord& run, const RunRecord& oracle) {
  const auto relative = [](double a, double b) { return a == b ? 0 : std::abs(a - b) / std::abs(b); };
  std::vector<StepDifference> differences;
  for (std::size_t i = 0; i < oracle.steps().size(); ++i) {
    const StepRecord &a = run.steps()[i], &b = oracle.steps()[i];
    StepDifference d;
    d.loss = a.loss;
    d.oracle_loss = b.loss;
    d.loss_difference = relative(a.loss, b.loss);
    if (a.gradient_norm && b.gradient_norm) d.norm_difference = relative(*a.gradient_norm, *b.gradient_norm);
    WEFT_CHECK(a.weights.size() == b.weights.size(), "{} and {} parameters", a.weights.size(), b.weights.size());
    for (const ParameterIdentity& identity : b.weights.identities()) {
      const HostTensor &ours = a.weights.at(identity), &theirs = b.weights.at(identity);
      double difference = 0, norm = 0;
      for (std::int64_t k = 0; k < theirs.elements(); ++k) {
        const double x = number_at(ours, k), y = number_at(theirs, k);
        difference += (x - y) * (x - y);
        norm += y * y;
      }
      const double here = difference == 0 ? 0 : std::sqrt(difference) / std::max(std::sqrt(norm), 1e-300);
      if (here > d.weight_difference || std::isnan(here)) {
        d.weight_difference = here;
        d.worst_weight = to_text(identity);
      }
    }
    differences.push_back(d);
  }
  return differences;
}

}  // namespace weft
