// Metrics as JSON lines: one object per line, keys in the caller's order, numbers exact enough to read back the same
// double. Every line is flushed, so a killed run lacks at most its last line.
//
// JSON has no NaN and no infinity: such a value is written as null, and a last key tells what it was:
//   {"iteration":7,"loss":null,"grad_norm":1.5,"note":"loss is nan"}
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <variant>

namespace weft {

struct Metric {
  std::string_view name;
  std::variant<std::int64_t, double, std::string_view, std::span<const std::string>> value;  // the last: a list
};

std::string to_json_line(std::span<const Metric> metrics);  // without the newline

class MetricsWriter {
 public:
  // Replaces an existing file; but of a run that goes on after `iteration`, its lines up to there stay. UserError when the
  // file cannot be written.
  explicit MetricsWriter(const std::filesystem::path& file, std::int64_t iteration = 0);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  // RunError when it cannot be written.
  void write(std::span<const Metric> metrics);
  void write(std::initializer_list<Metric> metrics) { write(std::span(metrics.begin(), metrics.size())); }

 private:
  std::filesystem::path path_;
  std::FILE* file_ = nullptr;
};

}  // namespace weft
