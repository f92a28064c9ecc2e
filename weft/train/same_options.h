// A mistake in a script may start the processes of a run with different options. The plan would be the same, and the
// training wrong.
#pragma once

#include <string>
#include <vector>

#include "weft/train/flags.h"
#include "weft/train/rank_agreement.h"

namespace weft {

// "--clip-grad 1", sorted: what must be the same on all ranks. Paths, logs and what concerns one process are left out.
std::vector<std::string> options_in_common(const FlagTable& flags);
// A name for a run with these options.
std::string run_name(const FlagTable& flags);
// Collective: an AgreedError if the options of any rank differ from rank 0's.
void require_same_options(const RankExchange& ranks, const std::vector<std::string>& options);

}  // namespace weft
