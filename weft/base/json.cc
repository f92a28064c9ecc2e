#include "weft/base/json.h"

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/file.h"

namespace weft {

std::string reason_of(const std::exception& error) {
  const std::string_view text = error.what();
  const std::size_t end = text.starts_with('[') ? text.find("] ") : std::string_view::npos;
  return std::string(end == std::string_view::npos ? text : text.substr(end + 2));
}

Json parse_json(std::string_view text, const std::string& where) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    throw UserError("{}: not valid JSON: {}", where, reason_of(e));
  }
}

Json read_json(const std::filesystem::path& file) { return parse_json(read_file(file), file.string()); }

}  // namespace weft
