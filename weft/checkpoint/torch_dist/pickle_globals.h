// The classes and functions that a checkpoint's pickles may name. They are only names here (pickle.h): the list keeps out
// files that are not what they seem, and makes a new form show itself as an error rather than as wrong numbers.
#pragma once

#include <string_view>

namespace weft {

bool is_accepted_global(std::string_view module, std::string_view name);

}  // namespace weft
