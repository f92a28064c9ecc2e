#include "weft/train/loss_watch.h"

#include <fmt/format.h>

namespace weft {

std::string look_at_loss(LossTrend& trend, double loss) {
  if (!trend.known) trend.mean = loss;
  trend.known = true;
  const bool was_high = trend.high;
  trend.high = loss > 2 * trend.mean && loss > trend.mean + 1;
  const double before = trend.mean;
  trend.mean += (loss - trend.mean) / 10;
  if (!trend.high || was_high) return "";
  return fmt::format(
      "the loss jumps from about {:.4g} to {:.4g}; if it stays there, lower --lr or raise --lr-warmup-iters", before,
      loss);
}

}  // namespace weft
