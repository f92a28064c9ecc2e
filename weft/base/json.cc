#include "weft/base/json.h"

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/json_builder.h"

namespace weft {

std::string reason_of(const std::exception& error) {
  const std::string_view text = error.what();
  const std::size_t end = text.starts_with('[') ? text.find("] ") : std::string_view::npos;
  return std::string(end == std::string_view::npos ? text : text.substr(end + 2));
}

Json parse_json(std::string_view text, const std::string& where) {
  return JsonBuilder<Json>(where, EqualKeys::last_counts).build(text);
}

Json read_json(const std::filesystem::path& file) { return parse_json(read_regular_file(file), file.string()); }

}  // namespace weft
