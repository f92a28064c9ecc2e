// Finds the fastest division of a device's processors between updates and the forward pass beside them, by trying each
// for a few steps at the start of a run. Results are bitwise the same with any division.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace weft {

class DivisionTrials {
 public:
  // What the next step is for. meet: an operation that sees a number of processors for the first time may time its
  // variants, so the step cannot be recorded. watch: the duration of updates decides which nodes run beside them. warm:
  // a graph's first launches are not representative.
  enum class Stage { meet, watch, warm, time, settled };

  // candidates: processors for updates; `all` means no division. At least one candidate; a single one is not timed.
  DivisionTrials(std::vector<int> candidates, int all);

  Stage stage() const { return stage_; }
  int processors() const { return candidates_[current_]; }
  bool divides() const { return processors() < all_; }
  bool settled() const { return stage_ == Stage::settled; }
  // For every timed division: processors for updates, mean seconds per step.
  const std::vector<std::pair<int, double>>& timed() const { return timed_; }
  // Call after each step of a stage. True if the step completed the timing of a division that is the fastest so far.
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

// No division, and a few that give updates less than half: even numbers, since a GPU's blocks often come in pairs.
std::vector<int> divisions_to_try(int all);

}  // namespace weft
