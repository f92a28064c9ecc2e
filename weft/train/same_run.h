// Whether all ranks are about to train the same model on the same data. Options are compared before (same_options.h);
// these are what files hold, which may not be the same on all machines.
#pragma once

#include <filesystem>

#include "weft/train/data_source.h"
#include "weft/train/rank_agreement.h"
#include "weft/train/session.h"

namespace weft {

// All are collective. They throw an AgreedError that names what differs, the ranks, and what to do.

// Compares every field of the configs.
void require_same_model(const RankExchange& ranks, const ModelConfig& config);
// Compares what the sources know of themselves, and up to a million tokens from all over each.
void require_same_data(const RankExchange& ranks, const DataSplits& splits);
// Compares the files of a model whose weights the ranks divide, so that none of them holds what another has: by the manifest,
// which has all checksums, or by samples of their bytes.
void require_same_files(const RankExchange& ranks, const std::filesystem::path& folder);
// Compares every weight between the ranks that hold it, by checksums: each rank reads its weights once.
void require_same_weights(Session& session);

}  // namespace weft
