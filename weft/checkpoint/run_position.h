// How far a run has come: what its checkpoints record besides tensors.
#pragma once

#include <cstdint>
#include <vector>

namespace weft {

// What the next log line sums up: steps since the last one.
struct LogSums {
  std::int64_t steps = 0;  // whose loss and gradient were finite
  double loss = 0, seconds = 0;
  std::vector<double> mtp_losses = {};  // by depth, from 1
  std::int64_t skipped = 0, not_finite = 0;

  bool operator==(const LogSums&) const = default;
};

// What a jump of the loss is measured by.
struct LossTrend {
  double mean = 0;  // of about the last ten losses
  bool known = false;
  bool high = false;  // the last of them was, so that the next one is not remarked again

  bool operator==(const LossTrend&) const = default;
};

// Schedules and the order of samples follow from it.
struct RunPosition {
  std::int64_t iteration = 0;         // steps done
  std::int64_t consumed_samples = 0;  // of training
  std::int64_t optimizer_steps = 0;   // those that moved weights
  LogSums unlogged = {};
  std::int64_t not_finite_in_a_row = 0;  // the last steps, which were skipped
  LossTrend loss_trend = {};
};

}  // namespace weft
