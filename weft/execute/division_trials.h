// Which division of a device's processors between updates and the forward pass beside them is fastest: tried at the
// beginning of a run, a few steps each. Results have the same bits with any, so nothing but time depends on it.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace weft {

class DivisionTrials {
 public:
  // What the next step is for. An operation that meets a number of processors for the first time may measure, so it
  // cannot be recorded; how long updates take says which nodes run beside them; a graph's first launches are no measure.
  enum class Stage { meet, watch, warm, time, settled };

  // candidates: processors for updates; `all` of them: no division. At least one, and one alone is not timed.
  DivisionTrials(std::vector<int> candidates, int all);

  Stage stage() const { return stage_; }
  int processors() const { return candidates_[current_]; }
  bool divides() const { return processors() < all_; }
  bool settled() const { return stage_ == Stage::settled; }
  // Of every division that was timed: processors for updates, mean seconds of a step.
  const std::vector<std::pair<int, double>>& timed() const { return timed_; }
  // A step of this stage took so long. Whether the division is timed with it and was the quickest so far.
  bool passed(double seconds);

 private:
  std::vector<int> candidates_;
  int all_;
  std::size_t current_ = 0, best_ = 0;
  int steps_ = 0;    // of this stage
  double warm_ = 0;  // seconds of the warm steps
  std::vector<std::pair<int, double>> timed_;
  Stage stage_ = Stage::meet;
};

// None and a handful below half of them: even numbers, since a GPU's blocks often come in pairs.
std::vector<int> divisions_to_try(int all);

}  // namespace weft
