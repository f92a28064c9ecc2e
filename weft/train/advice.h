// What to do about numbers that are not finite.
#pragma once

#include <string>

#include "weft/train/options.h"

namespace weft {

// consumed_samples: with those of the step.
std::string advice_on_not_finite(const TrainOptions& options, std::int64_t iteration, std::int64_t consumed_samples);

}  // namespace weft
