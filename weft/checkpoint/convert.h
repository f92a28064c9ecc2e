// One folder with a model to another: names and layouts change, elements do not.
//
// A tensor is in memory at a time (of one that all experts share, an expert), and read pages of the input are given
// back, so that a model may be larger than memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "weft/checkpoint/hugging_face.h"

namespace weft {

enum class CheckpointFormat : std::uint8_t { hugging_face, weft };

struct ConvertOptions {
  CheckpointFormat from = CheckpointFormat::hugging_face, to = CheckpointFormat::weft;
  std::filesystem::path in, out;
  std::optional<ExpertsForm> experts;  // of a Hugging Face folder that is written; absent: as they were
  std::int64_t max_shard_bytes = 50'000'000'000;
  std::function<void(std::size_t bytes, std::size_t total)> progress = {};
};

struct ConvertResult {
  std::string family, pattern;
  ExpertsForm experts = ExpertsForm::none;  // as the Hugging Face folder has them
  std::size_t tensors_in = 0, tensors_out = 0, files = 0, bytes = 0;
  std::int64_t parameters = 0;
};

// UserError for what is wrong with the folders; then, and when writing fails, there is no `out`.
ConvertResult convert_checkpoint(const ConvertOptions& options);

}  // namespace weft
