#include "weft/checkpoint/json_strict.h"

#include <nlohmann/json.hpp>

#include "weft/base/json_builder.h"

namespace weft {

nlohmann::json parse_strict_json(std::string_view text, const std::string& where) {
  return JsonBuilder<nlohmann::json>(where, EqualKeys::refused).build(text);
}

}  // namespace weft
