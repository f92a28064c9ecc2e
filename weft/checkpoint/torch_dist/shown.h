// Text from a file that may be damaged, as messages show it.
#pragma once

#include <string>
#include <string_view>

namespace weft {

// In single quotes, at most some hundred characters; bytes that are not printable ASCII as \xNN.
std::string shown(std::string_view text);

}  // namespace weft
