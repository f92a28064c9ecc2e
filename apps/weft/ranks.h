// The ranks of a run: threads of this process, or processes that a launcher started.
#pragma once

#include <functional>

#include "weft/comm/launch.h"
#include "weft/comm/world.h"
#include "weft/train/options.h"

namespace weft {

Launch this_launch();
// Runs body on every rank that lives in this process and returns the largest exit code. World is null for one rank.
int run_ranks(const TrainOptions& options, const Launch& launch, const std::function<int(World*)>& body);

}  // namespace weft
