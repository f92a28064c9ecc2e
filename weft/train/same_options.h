// A mistake in a script may start the processes of a run with different options. The plan would be the same, and the
// training wrong.
#pragma once

#include <string>
#include <vector>

#include "weft/comm/world.h"
#include "weft/train/flags.h"

namespace weft {

// "--clip-grad 1", sorted: what must be the same on all ranks. Paths, logs and what concerns one process are left out.
std::vector<std::string> options_in_common(const FlagTable& flags);
// How the options of `rank` differ from those of rank 0; "" if they do not.
std::string difference_of_options(const std::vector<std::string>& first, const std::vector<std::string>& own, int rank);
// Collective over all ranks: the same UserError on each if the options of any differ from rank 0's.
void require_same_options(World& world, const FlagTable& flags);

}  // namespace weft
