#include "weft/execute/background_updates.h"

#include <algorithm>

namespace weft {

std::vector<std::optional<NodeTime>> in_background(std::span<const BackgroundUpdate> updates) {
  std::vector<std::optional<NodeTime>> times;
  double free = 0;  // when the processors are free again
  for (const BackgroundUpdate& u : updates) {
    free = std::max(free, u.ready);
    const NodeTime time{free, free + u.seconds};
    times.emplace_back();
    if (time.end > u.deadline) continue;
    times.back() = time;
    free = time.end;
  }
  return times;
}

}  // namespace weft
