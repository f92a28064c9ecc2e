// JSON files, read with errors that name the file and the key.
#pragma once

#include <exception>
#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace weft {

using Json = nlohmann::ordered_json;

// Throws UserError naming the file and what is wrong with it.
Json read_json(const std::filesystem::path& file);
Json parse_json(std::string_view text, const std::string& where);
// What an exception of the library says, without "[json.exception.parse_error.101] ".
std::string reason_of(const std::exception& error);

}  // namespace weft
