// Ranks that are processes of their own may have been started with different options, by a mistake in a script: the plan
// would be the same and the training wrong.
#pragma once

#include <string>
#include <vector>

#include "weft/comm/world.h"
#include "weft/train/flags.h"

namespace weft {

// "--clip-grad 1", sorted: what must be alike on all ranks. Not where files are, logs, and what concerns one process.
std::vector<std::string> options_in_common(const FlagTable& flags);
// Says how the options of `rank` differ from those of rank 0; "" where they do not.
std::string difference_of_options(const std::vector<std::string>& first, const std::vector<std::string>& own, int rank);
// Collective over all ranks: the same UserError on each if the options of any differ from rank 0's.
void require_same_options(World& world, const FlagTable& flags);

}  // namespace weft
