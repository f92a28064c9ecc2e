// JSON files, read with errors that name the file and the key.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace weft {

using Json = nlohmann::ordered_json;

// Throws UserError naming the file and what is wrong with it.
Json read_json(const std::filesystem::path& file);
Json parse_json(std::string_view text, const std::string& where);

}  // namespace weft
