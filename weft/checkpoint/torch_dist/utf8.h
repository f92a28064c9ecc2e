// Text as Python has it: UTF-8 without surrogates.
#pragma once

#include <string>
#include <string_view>

namespace weft {

bool is_valid_utf8(std::string_view text);
// With U+FFFD for every byte that is not part of a character.
std::string as_valid_utf8(std::string_view text);

}  // namespace weft
