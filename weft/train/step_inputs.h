// What the host gives to a step: tokens, labels, and the step's numbers. A micro-batch is that of all context ranks; each
// gives its own tokens to the step.
#pragma once

#include <span>

#include "weft/data/token_source.h"
#include "weft/execute/prepared_plan.h"
#include "weft/model/config.h"
#include "weft/model/context_ranks.h"
#include "weft/optim/optimizer.h"

namespace weft {

struct StepNumbers {
  double learning_rate = 0, weight_decay = 0;
  std::int64_t step = 1;  // of the optimizer, from 1: for the corrections of its moments
  // Labels that count in the micro-batches of all ranks, where each of them weighs the same. 0: every micro-batch does.
  std::int64_t counted_labels = 0;
};

class StepInputs {
 public:
  StepInputs(const ModelConfig& config, const OptimizerSpec& optimizer, const Layout& layout);

  // Every micro-batch counts the same, and within it every counted token; or every counted token of the step does
  // (StepNumbers::counted_labels). UserError naming a token that is not in the vocabulary.
  void write(const PreparedPlan& plan, std::span<const MicroBatch> batches, const StepNumbers& numbers) const;
  // Zero tokens and losses that weigh 1: for a micro-batch that only has to run.
  void write_zeros(const PreparedPlan& plan, int micro_batch) const;
  std::int64_t embedding_rows() const { return config_.embedding_rows(); }
  double mtp_factor(const Module& module) const;  // of one depth's mean loss in the sum that is trained

 private:
  std::int64_t write_tokens(const PreparedPlan& plan, int micro_batch, const MicroBatch& batch) const;
  void write_part(const PreparedPlan& plan, int micro_batch, const MicroBatch& batch) const;
  void write_numbers(const PreparedPlan& plan, const StepNumbers& numbers) const;
  void write_documents(const PreparedPlan& plan, int micro_batch, const MicroBatch& batch) const;

  ModelConfig config_;
  OptimizerSpec optimizer_;
  ContextRanks context_;
  double data_ranks_;
  double routing_ranks_;  // that route different tokens
};

}  // namespace weft
