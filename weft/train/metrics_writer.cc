#include "weft/train/metrics_writer.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <vector>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/json.h"
#include "weft/base/text.h"

namespace weft {

namespace {

std::string json_text(std::string_view text) {
  // A value may be any text: bytes that are not UTF-8 must not end the run.
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string to_json_line(std::span<const Metric> metrics) {
  std::string line = "{";
  std::vector<std::string> notes;
  for (const Metric& metric : metrics) {
    if (line.size() > 1) line += ',';
    line += json_text(metric.name) + ':';
    if (const auto* whole = std::get_if<std::int64_t>(&metric.value)) {
      line += fmt::format("{}", *whole);
    } else if (const auto* text = std::get_if<std::string_view>(&metric.value)) {
      line += json_text(*text);
    } else if (const auto* list = std::get_if<std::span<const std::string>>(&metric.value)) {
      std::vector<std::string> items;
      for (const std::string& item : *list) items.push_back(json_text(item));
      line += fmt::format("[{}]", join(items, ","));
    } else if (const double number = std::get<double>(metric.value); std::isfinite(number)) {
      line += fmt::format("{:.17g}", number);
    } else {
      line += "null";
      notes.push_back(fmt::format("{} is {}", metric.name, std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf"));
    }
  }
  if (!notes.empty()) line += fmt::format(",\"note\":{}", json_text(join(notes, ", ")));
  return line + '}';
}

namespace {

// The lines of a metrics file up to an iteration. A line that is cut off, by a kill, is dropped.
std::string lines_up_to(const std::filesystem::path& file, std::int64_t iteration) {
  std::ifstream in(file, std::ios::binary);
  std::string kept, line;
  while (std::getline(in, line)) {
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object() && json.contains("iteration") && json["iteration"].is_number_integer() &&
        json["iteration"] <= iteration &&
        !(json["iteration"] == iteration && json.contains("unexpected")))  // of the load that this run does again
      kept += line + '\n';
  }
  return kept;
}

}  // namespace

MetricsWriter::MetricsWriter(const std::filesystem::path& file, std::int64_t iteration) : path_(file) {
  std::error_code error;
  if (iteration > 0 && std::filesystem::is_regular_file(file, error)) {
    write_file_atomically(file, lines_up_to(file, iteration));
    file_ = std::fopen(file.c_str(), "ab");
  } else {
    file_ = std::fopen(file.c_str(), "wb");
  }
  if (file_ == nullptr) {
    throw UserError("cannot write the metrics to {}: {} (--metrics; does the folder exist?)", file.string(),
                    std::strerror(errno));
  }
}

MetricsWriter::~MetricsWriter() { std::fclose(file_); }

void MetricsWriter::write(std::span<const Metric> metrics) {
  const std::string line = to_json_line(metrics) + '\n';
  if (std::fwrite(line.data(), 1, line.size(), file_) != line.size() || std::fflush(file_) != 0) {
    throw RunError("cannot write the metrics to {}: {}", path_.string(), std::strerror(errno));
  }
}

}  // namespace weft
