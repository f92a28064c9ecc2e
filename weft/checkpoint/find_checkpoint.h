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

// `dir` itself if it is a checkpoint; else the one in it of iteration `step`, if given, or the one that the tracker names;
// with last_complete the newest that is whole, whatever the tracker names (warn is told about those that are not). Nothing
// where there is no checkpoint at all. UserError where there is not the one that is named.
using Warn = std::function<void(const std::string&)>;
std::optional<CheckpointPlace> find_checkpoint(const std::filesystem::path& dir, std::optional<std::int64_t> step = {},
                                               bool last_complete = false, const Warn& warn = {});

// As one of this model. masters: of Megatron's form.
std::unique_ptr<CheckpointReader> open_checkpoint(const CheckpointPlace& place, const ModelConfig& config,
                                                  MasterWeights masters = MasterWeights::where_wider);
// The flags of the run that wrote it, under the names that this form has for them.
Json arguments_of(const CheckpointPlace& place);

}  // namespace weft
