#include "weft/train/loss_watch.h"

#include <fmt/format.h>

namespace weft {

std::string LossWatch::look_at(double loss) {
  if (!known_) mean_ = loss;
  known_ = true;
  const bool was_high = high_;
  high_ = loss > 2 * mean_ && loss > mean_ + 1;
  const double before = mean_;
  mean_ += (loss - mean_) / 10;
  if (!high_ || was_high) return "";
  return fmt::format(
      "the loss jumps from about {:.4g} to {:.4g}; if it stays there, lower --lr or raise --lr-warmup-iters", before,
      loss);
}

}  // namespace weft
