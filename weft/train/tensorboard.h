// TensorBoard event files: a stream of framed records, each a protocol buffer written by hand (only scalars are
// needed).
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

namespace weft {

// CRC-32C (Castagnoli), as event files use it.
std::uint32_t crc32c(std::string_view bytes);

// Whole records with their frame: u64 length, its masked crc, data, their masked crc. wall_time: seconds since 1970.
std::string tensorboard_version_record(double wall_time);
// A run goes on: TensorBoard forgets points of older files from this step on.
std::string tensorboard_restart_record(double wall_time, std::int64_t step);
std::string tensorboard_scalar_record(double wall_time, std::int64_t step, std::string_view tag, float value);

class TensorboardWriter {
 public:
  // Makes the folder if needed and a new event file in it, with a unique name. iteration: that the run goes on after; 0: it
  // begins. UserError when it cannot.
  explicit TensorboardWriter(const std::filesystem::path& folder, std::int64_t iteration = 0);
  ~TensorboardWriter();
  TensorboardWriter(const TensorboardWriter&) = delete;
  TensorboardWriter& operator=(const TensorboardWriter&) = delete;

  // Adds one point to the curve `tag` and flushes it. RunError when it cannot be written.
  void scalar(std::string_view tag, std::int64_t step, double value);

  const std::filesystem::path& file() const { return path_; }

 private:
  void write(std::string_view record);

  std::filesystem::path path_;
  std::FILE* file_ = nullptr;
};

}  // namespace weft
