// What a run prints before it begins and while it runs.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weft/plan/divided_memory.h"
#include "weft/plan/memory.h"
#include "weft/plan/simulate/estimate.h"
#include "weft/train/options.h"
#include "weft/train/session.h"

namespace weft {

struct PlanReport {
  std::string pattern;
  ParameterCount parameters;
  std::size_t nodes = 0;
  MemoryPlan memory;
  DividedMemory divided;
  std::int64_t stream_bytes = 0;  // workspace of operations, in addition to their tensors
  std::int64_t validation_bytes = 0;
  std::int64_t communicator_bytes = 0;
  std::int64_t library_bytes = -1;  // -1: not measured
  std::int64_t ranks = 1;
  double flops = 0;                          // per step and rank
  double recomputed_flops = 0;               // on top of these
  std::int64_t tokens = 0;                   // per step, of all ranks
  double product_peak = 0;                   // FLOP/s measured in large products; 0: not measured
  std::array<double, lane_count> traffic{};  // bytes that a rank sends in a step, by lane
  const Estimate* estimate = nullptr;
};
std::string to_text(const PlanReport& report);
// Of a plan whose nodes are priced, on one of `ranks`; what needs no measurement.
PlanReport report_of(const Module& module, const Plan& plan, const MemoryPlan& memory, const ModelConfig& config,
                     const TrainOptions& options);
// Of a session's training plan: all that needs no measurement.
PlanReport report_of(Session& session, const TrainOptions& options, const Pricer& pricer);
// "step 72.5 ms, 81.4 % of the exchange hidden, 60.2 % of transfers among tensor ranks hidden"; without those that there are none
// of.
std::string step_text(const Estimate& estimate);

// The description of a run on a timeline page: the model, its layout, the switches that change the order of a step.
std::string about_text(const TrainOptions& options, const std::string& pattern, std::int64_t parameters);

// Megatron's log line, with tokens per second and the time left.
struct LogLine {
  std::int64_t iteration = 0, iterations = 0, consumed_samples = 0, global_batch = 0;
  double step_seconds = 0, flops_per_second = 0, tokens_per_second = 0;
  double product_peak = 0;                                    // of all devices, as in PlanReport; 0: not measured
  std::vector<std::pair<std::string, double>> router_losses;  // by name
  std::vector<double> mtp_losses;                             // by depth, from 1
  double learning_rate = 0, loss = 0, seconds_left = 0;
  std::optional<double> gradient_norm;       // absent without clipping
  std::int64_t skipped = 0, not_finite = 0;  // iterations since the last line
};
std::string to_text(const LogLine& line);

// Losses of routers that the run asks for, under Megatron's names; and those of sparse attention's indexers.
// by_layer: also the router's losses of each layer, "z_loss_layer_3" or, in an MTP depth, "z_loss_mtp_1_layer_0".
std::vector<std::pair<std::string, double>> named_losses(const BalanceSpec& balance, const Module& module,
                                                         const StepResult& result, bool by_layer);

}  // namespace weft
