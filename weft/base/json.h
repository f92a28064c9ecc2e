// Reads JSON files, with errors that name the file.
#pragma once

#include <exception>
#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace weft {

using Json = nlohmann::ordered_json;

// How deep values may nest. What prints, copies or compares them uses the stack.
inline constexpr int max_json_depth = 100;

// UserError names the file and what is wrong with it. Of equal keys in one object the last counts.
Json read_json(const std::filesystem::path& file);
Json parse_json(std::string_view text, const std::string& where);
// The message of an exception of the JSON library, without "[json.exception.parse_error.101] ".
std::string reason_of(const std::exception& error);

}  // namespace weft
