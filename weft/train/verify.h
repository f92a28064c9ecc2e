// A layout and the serial single-rank oracle, side by side.
#pragma once

#include <mutex>
#include <optional>
#include <vector>

#include "weft/model/logical_parameters.h"
#include "weft/train/options.h"
#include "weft/train/trainer.h"

namespace weft {

// What a run computed, step by step. Weights are those of all ranks together.
struct StepRecord {
  double loss = 0;
  std::optional<double> gradient_norm;
  LogicalParameters weights;
};
class RunRecord {
 public:
  explicit RunRecord(int steps) : steps_(static_cast<std::size_t>(steps)) {}
  // From any rank's thread, after step `step`.
  void add(int step, const StepResult& result, Session& session);
  const std::vector<StepRecord>& steps() const { return steps_; }

 private:
  std::mutex mutex_;
  std::vector<StepRecord> steps_;
};

// One rank's part of a run of `steps` steps; all ranks of a process share `record`.
void run_recorded(const TrainOptions& options, const TrainEnvironment& environment, RunRecord& record);
// The same samples on one rank, one node after another: micro-batch m of shard r is its micro-batch m x shards + r.
TrainOptions oracle_of(const TrainOptions& options);

struct StepDifference {
  double loss = 0, oracle_loss = 0;
  // Relative: |a - b| / |b|; of weights the norm of the difference over the norm, of the worst parameter.
  double loss_difference = 0, norm_difference = 0, weight_difference = 0;
  std::string worst_weight;
  // "loss, gradient norm, language.main.3.gate.7": what is not within the tolerance; of weights the worst.
  std::string beyond(double tolerance) const;
  bool within(double tolerance) const {  // false if any is NaN
    return loss_difference <= tolerance && norm_difference <= tolerance && weight_difference <= tolerance;
  }
};
std::vector<StepDifference> compare(const RunRecord& run, const RunRecord& oracle);

}  // namespace weft
