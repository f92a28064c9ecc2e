// Decides which updates a few processors can finish before their results are needed.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "weft/execute/executor.h"

namespace weft {

// An update on its share of the processors, beside the compute lane. Seconds on that lane's clock: when its inputs are
// ready, when its result is needed, and how long it takes.
struct BackgroundUpdate {
  double ready = 0, deadline = 0, seconds = 0;
};
// Updates run one after another. Returns when each runs, or nullopt for an update that would be late: it must take all
// processors, and the compute lane waits meanwhile.
std::vector<std::optional<NodeTime>> in_background(std::span<const BackgroundUpdate> updates);

}  // namespace weft
