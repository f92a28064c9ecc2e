// Tables of Unicode 14, packed as text (unpack_mappings reads them). Every syllable of Hangul is left out: its parts are
// computed.
#pragma once

#include <string_view>

namespace weft {

std::string_view canonical_data();    // character -> its full canonical decomposition
std::string_view compatible_data();   // the same by compatibility, where that differs
std::string_view composition_data();  // character -> the two that compose to it
std::string_view class_data();        // character -> its combining class, where that is not 0
std::string_view lower_data();        // character -> itself in lower case, where that differs

}  // namespace weft
