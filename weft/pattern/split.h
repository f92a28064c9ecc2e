// Splits the main part of a pattern over pipeline ranks.
#pragma once

#include <string_view>
#include <vector>

#include "weft/pattern/scan.h"

namespace weft {

// The items of each segment, by index. Checks every rule of the split.
std::vector<std::vector<PatternItem>> split_main(std::string_view text, const PatternPart& main,
                                                 const SplitOptions& options);

}  // namespace weft
