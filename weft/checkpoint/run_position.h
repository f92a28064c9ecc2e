// How far a run has come: what its checkpoints say beside tensors.
#pragma once

#include <cstdint>

namespace weft {

// Schedules and the order of samples follow from it.
struct RunPosition {
  std::int64_t iteration = 0;         // steps done
  std::int64_t consumed_samples = 0;  // of training
  std::int64_t optimizer_steps = 0;   // those that moved weights
};

}  // namespace weft
