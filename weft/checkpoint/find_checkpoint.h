// The checkpoint that --load means, of whichever form: Weft's (manifest.json) or Megatron's (metadata.json, .metadata).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "weft/base/json.h"
#include "weft/checkpoint/checkpoint_reader.h"
#include "weft/checkpoint/megatron/megatron_checkpoint.h"
#include "weft/model/config.h"

namespace weft {

enum class CheckpointForm : std::uint8_t { weft, megatron };

struct CheckpointPlace {
  std::filesystem::path folder;
  CheckpointForm form = CheckpointForm::weft;
};

// Newest: the one that the tracker names, then those before it; last those of later iterations, which a run leaves that
// goes on from an earlier one.
enum class WhichCheckpoint : std::uint8_t {
  tracked,          // the one that the tracker names
  newest_open,      // the newest that can be opened: its files are there and have their sizes
  newest_verified,  // and whose checksums are right; this reads all of it
};

// `dir` itself if it is a checkpoint; else the one in it of iteration `step`, if given, or else `which`. Nothing where there
// is no such checkpoint; warn is told of those that are there and not taken, and what to do. UserError where there is not
// the one that step or the tracker names. working: called again and again while checkpoints are verified.
using Warn = std::function<void(const std::string&)>;
std::optional<CheckpointPlace> find_checkpoint(const std::filesystem::path& dir, std::optional<std::int64_t> step = {},
                                               WhichCheckpoint which = WhichCheckpoint::tracked, const Warn& warn = {},
                                               const std::function<void()>& working = {});
// Of the folder itself; nothing: it is none. It may be incomplete or of a form that cannot be read: opening it tells.
std::optional<CheckpointPlace> checkpoint_at(const std::filesystem::path& folder);

// As one of this model. masters: of Megatron's form.
std::unique_ptr<CheckpointReader> open_checkpoint(const CheckpointPlace& place, const ModelConfig& config,
                                                  MasterWeights masters = MasterWeights::where_wider);
// The flags of the run that wrote it, under the names that this form has for them.
Json arguments_of(const CheckpointPlace& place);

}  // namespace weft
