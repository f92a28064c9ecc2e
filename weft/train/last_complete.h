// --load-last-complete: the checkpoint that a run on several ranks goes on from.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>

#include "weft/base/ids.h"
#include "weft/checkpoint/find_checkpoint.h"
#include "weft/train/rank_exchange.h"

namespace weft {

// The newest in `dir` that is complete and undamaged (WhichCheckpoint::newest_verified). Verifying reads all of it, so the
// first rank does it alone, and tells the others which it is; and meanwhile, every `interval`, that it is still at work:
// no wait of theirs then runs into the timeout. All ranks make the call. UserError on a rank that does not see the folder.
std::optional<CheckpointPlace> find_last_complete(const RankExchange& ranks, RankId rank,
                                                  const std::filesystem::path& dir, const Warn& warn,
                                                  std::chrono::milliseconds interval = std::chrono::seconds(1));

}  // namespace weft
