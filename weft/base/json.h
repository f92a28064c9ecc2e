// JSON files, read with errors that name the file and the key.
#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace weft {

using Json = nlohmann::ordered_json;

// Throws UserError naming the file and what is wrong with it.
Json read_json(const std::filesystem::path& file);
Json parse_json(std::string_view text, const std::string& where);

// Whole file as bytes; UserError when it cannot be read.
std::string read_file(const std::filesystem::path& file);
// Writes beside the file, fsyncs and renames, so that a reader never sees half of it. RunError on failure.
void write_file_atomically(const std::filesystem::path& file, std::string_view bytes);

}  // namespace weft
