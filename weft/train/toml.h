// TOML files with the names of the flags: `hidden-size = 64` or `hidden_size = 64`, switches as true or false, lists as
// arrays. Tables are mere sections: [model] changes nothing about the keys below it.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/train/flags.h"

namespace weft {

// The assignments in the order of their lines; what their names mean is not looked at. UserError with file, line,
// column and a caret line when the text is no TOML, or a value is of no type that a flag can have.
std::vector<FlagAssignment> parse_toml(std::string_view text, const std::string& file);
std::vector<FlagAssignment> read_toml(const std::filesystem::path& file);

// The files that --config names, each over those before it, and the command line over all of them.
void parse_flags(FlagTable& flags, std::span<const std::string> words);

}  // namespace weft
