// Reads the text of a pattern into items with their positions, so that later checks can point at the text.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "weft/pattern/pattern.h"

namespace weft {

struct PatternItem {
  PatternLayer layer;  // numbered from 0 within its part
  std::size_t begin = 0;
};

// The main part or one MTP depth.
struct PatternPart {
  std::size_t begin = 0, end = 0;
  std::vector<std::vector<PatternItem>> segments;  // at least one; '|' begins another
};

// The main part first. Checks every rule of the grammar that does not depend on the split.
std::vector<PatternPart> scan_pattern(std::string_view text);

// UserError: the rule, the text, and a caret under `position`.
[[noreturn]] void fail_pattern(std::string_view text, std::size_t position, std::string_view rule);

}  // namespace weft
