// Strict JSON, for files that programs write: duplicate keys are an error, and objects of a hundred thousand keys are quick.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace weft {

// UserError naming `where`.
nlohmann::json parse_strict_json(std::string_view text, const std::string& where);

}  // namespace weft
