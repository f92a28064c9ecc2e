#include "weft/checkpoint/json_strict.h"

#include <set>
#include <vector>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/json.h"

namespace weft {

nlohmann::json parse_strict_json(std::string_view text, const std::string& where) {
  using nlohmann::json;
  std::vector<std::set<std::string>> open;  // keys seen in the objects around the place
  const auto check = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) {
      open.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      open.pop_back();
    } else if (event == json::parse_event_t::key && !open.back().insert(parsed.get<std::string>()).second) {
      throw UserError("{}: the key '{}' stands twice in one object", where, parsed.get<std::string>());
    }
    return true;
  };
  // The parser takes a zero byte for the end, whatever follows it.
  if (text.find('\0') != std::string_view::npos) throw UserError("{}: not valid JSON: holds a zero byte", where);
  try {
    return json::parse(text.begin(), text.end(), check);
  } catch (const json::exception& e) {
    throw UserError("{}: not valid JSON: {}", where, reason_of(e));
  }
}

}  // namespace weft
