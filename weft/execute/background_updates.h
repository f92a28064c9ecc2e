// Which updates a few processors have done before their results are needed.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "weft/execute/executor.h"

namespace weft {

// An update on its part of the processors, beside the compute lane, in that lane's time (seconds): when what it needs is
// there, when its result is needed, how long it takes.
struct BackgroundUpdate {
  double ready = 0, deadline = 0, seconds = 0;
};
// Updates run one after another. When each does if it is done in time; the others have to take all processors, and the
// compute lane stands still meanwhile.
std::vector<std::optional<NodeTime>> in_background(std::span<const BackgroundUpdate> updates);

}  // namespace weft
