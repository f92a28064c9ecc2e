// Runs a session's model forward: losses and logits, without a trace in weights or states.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "weft/train/rank_exchange.h"
#include "weft/train/step_inputs.h"

namespace weft {

// A plan that trains nothing. keep_logits: it writes the logits.
struct EvaluationShape {
  std::int64_t batch = 1, length = 1;
  bool keep_logits = false;
  bool operator==(const EvaluationShape&) const = default;
};

struct EvaluationLosses {
  double loss = 0;                      // mean over the batch's tokens, of all ranks
  std::vector<double> mtp_losses = {};  // of each depth, the mean over the tokens that it predicts
  double weight = 1;                    // of these means among those of several batches
};

// A module with its plan. They are made when a shape is first asked for, and kept.
struct EvaluationPlan {
  Module module;
  std::unique_ptr<PreparedPlan> plan;
};
using MakeEvaluation = std::function<std::unique_ptr<EvaluationPlan>(const EvaluationShape& shape)>;
// How many labels count in the batches of all ranks.
using CountLabels = std::function<std::int64_t(const MicroBatch& batch)>;

// With several ranks all of them make every call, and results are those of all.
class Evaluator {
 public:
  // batch, length: the shape of training. inputs, stream and ranks outlive it. count: where every counted token weighs the
  // same, not every batch.
  Evaluator(std::int64_t batch, std::int64_t length, const StepInputs& inputs, Stream& stream,
            const RankExchange& ranks, MakeEvaluation make, CountLabels count);

  // Of one batch of the training shape.
  EvaluationLosses losses(const MicroBatch& batch);
  double loss(const MicroBatch& batch) { return losses(batch).loss; }
  // Logits [batch * length, embedding rows] of a batch of the training shape; empty on ranks without the head.
  std::vector<double> batch_logits(const MicroBatch& batch);
  // Logits [tokens, embedding rows] of one sequence of at most `length` tokens, the same on all ranks.
  std::vector<double> logits(std::span<const std::int32_t> tokens);

 private:
  const EvaluationPlan& plan_for(const EvaluationShape& shape);
  void run(const EvaluationPlan& evaluation, const MicroBatch& batch, const StepNumbers& numbers = {});
  std::vector<double> read_logits(const EvaluationPlan& evaluation) const;

  std::int64_t batch_, length_;
  const StepInputs& inputs_;
  Stream& stream_;
  const RankExchange& ranks_;
  MakeEvaluation make_;
  CountLabels count_;
  std::vector<std::pair<EvaluationShape, std::unique_ptr<EvaluationPlan>>> plans_;
};

}  // namespace weft
