#include "weft/execute/division_trials.h"

#include "weft/base/error.h"

namespace weft {

namespace {
// Steps per division. The steps before them are queued node by node, so the GPU is below its power limit: for most of a
// second afterwards, steps were up to 4% faster than later, more so with some divisions than with others. Steps vary
// randomly by about 1%.
constexpr int least_warmups = 3, most_warmups = 12, timings = 6;
constexpr double warm_seconds = 1;
}  // namespace

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
      warm_ += seconds;
      if (++steps_ < least_warmups || (steps_ < most_warmups && warm_ < warm_seconds)) return false;
      steps_ = 0;
      warm_ = 0;
      stage_ = Stage::time;
      return false;
    case Stage::time: {
      if (timed_.size() == current_) timed_.emplace_back(processors(), 0);
      timed_[current_].second += seconds / timings;
      if (++steps_ < timings) return false;
      steps_ = 0;
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
    for (int units : {1, 4, 6, 8, 10})
      if (units * unit < all / 2) candidates.push_back(units * unit);
  return candidates;
}

}  // namespace weft
