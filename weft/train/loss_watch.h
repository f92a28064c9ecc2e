// Notices losses that jump, which often precede a NaN.
#pragma once

#include <string>

#include "weft/checkpoint/run_position.h"

namespace weft {

// Of every step whose loss is finite, one after another. Returns a remark for the log, "" most often: once for a loss of
// more than twice the recent mean, and more than 1 above it.
std::string look_at_loss(LossTrend& trend, double loss);

}  // namespace weft
