// Reads JSON files, with errors that name the file.
#pragma once

#include <exception>
#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace weft {

using Json = nlohmann::ordered_json;

// UserError names the file and what is wrong with it.
Json read_json(const std::filesystem::path& file);
Json parse_json(std::string_view text, const std::string& where);
// The message of an exception of the JSON library, without "[json.exception.parse_error.101] ".
std::string reason_of(const std::exception& error);

}  // namespace weft
