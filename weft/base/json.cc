#include "weft/base/json.h"

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/file.h"

namespace weft {

Json parse_json(std::string_view text, const std::string& where) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    throw UserError("{}: not valid JSON: {}", where, e.what());
  }
}

Json read_json(const std::filesystem::path& file) { return parse_json(read_file(file), file.string()); }

}  // namespace weft
