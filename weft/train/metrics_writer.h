// Metrics as JSON lines: one object a line, the keys in the caller's order, numbers so exact that reading gives the
// same double. Every line is flushed, so a killed run has all its lines but perhaps the last.
//
// JSON has no NaN and no infinity: such a value is written as null, and a last key says what it was:
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
  std::variant<std::int64_t, double, std::string_view> value;
};

std::string to_json_line(std::span<const Metric> metrics);  // without the line's end

class MetricsWriter {
 public:
  // An old file is replaced. UserError when the file cannot be written.
  explicit MetricsWriter(const std::filesystem::path& file);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  // RunError when the disk does not take it.
  void write(std::span<const Metric> metrics);
  void write(std::initializer_list<Metric> metrics) { write(std::span(metrics.begin(), metrics.size())); }

 private:
  std::filesystem::path path_;
  std::FILE* file_ = nullptr;
};

}  // namespace weft
