#include "weft/execute/division_trials.h"

#include <algorithm>

#include "weft/base/error.h"

namespace weft {

namespace {
constexpr int timings = 2;  // of a division; what steps differ by is chance, about one in a hundred
}

DivisionTrials::DivisionTrials(std::vector<int> candidates, int all) : candidates_(std::move(candidates)), all_(all) {
  WEFT_CHECK(!candidates_.empty(), "no division to try");
}

bool DivisionTrials::passed(double seconds) {
  const bool one = candidates_.size() == 1;
  switch (stage_) {
    case Stage::meet:
      stage_ = divides() ? Stage::watch : one ? Stage::settled : Stage::warm;
      return false;
    case Stage::watch:
      stage_ = one ? Stage::settled : Stage::warm;
      return false;
    case Stage::warm:
      stage_ = Stage::time;
      return false;
    case Stage::time: {
      if (timed_.size() == current_) timed_.emplace_back(processors(), 0);
      timed_[current_].second += seconds / timings;
      if (++timings_ < timings) return false;
      timings_ = 0;
      const bool quickest = timed_[current_].second <= timed_[best_].second;
      if (quickest) best_ = current_;
      if (current_ + 1 < candidates_.size())
        ++current_, stage_ = Stage::meet;
      else
        current_ = best_, stage_ = Stage::settled;
      return quickest;
    }
    case Stage::settled:
      break;
  }
  return false;
}

std::vector<int> divisions_to_try(int all) {
  std::vector<int> candidates{all};
  const int unit = (all / 33 + 1) / 2 * 2;  // 4 of 132
  if (unit > 0)
    for (int units : {1, 2, 3, 4, 6, 8, 10})
      if (units * unit < all / 2) candidates.push_back(units * unit);
  return candidates;
}

std::vector<std::optional<NodeTime>> in_background(std::span<const BackgroundUpdate> updates) {
  std::vector<std::optional<NodeTime>> times;
  double free = 0;  // from here on
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
