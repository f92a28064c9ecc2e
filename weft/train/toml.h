// TOML files with the names of the flags: `hidden-size = 64` or `hidden_size = 64`, switches as true or false, lists as
// arrays. Tables are only sections: [model] does not change the keys below it.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/train/flags.h"

namespace weft {

// The assignments in the order of their lines; their names are not checked. UserError with file, line, column and a
// caret line when the text is not TOML, or a value has a type that no flag has.
std::vector<FlagAssignment> parse_toml(std::string_view text, const std::string& file);
std::vector<FlagAssignment> read_toml(const std::filesystem::path& file);

// Applies the files that --config names, in order, and then the command line: the later ones override.
void parse_flags(FlagTable& flags, std::span<const std::string> words);

}  // namespace weft
