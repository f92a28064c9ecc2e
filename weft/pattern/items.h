// Inside weft/pattern: the pattern as scanned, every item with its place in the text, so that later checks can point.
#pragma once

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
  std::vector<std::vector<PatternItem>> segments;  // at least one; more where '|' stands
};

// The main part first. Checks every rule of the grammar that needs no split.
std::vector<PatternPart> scan_pattern(std::string_view text);

// The items of each segment, by index. Checks every rule of the split.
std::vector<std::vector<PatternItem>> split_main(std::string_view text, const PatternPart& main,
                                                 const SplitOptions& options);

// UserError: the rule, the text, and a caret under `position`.
[[noreturn]] void fail_pattern(std::string_view text, std::size_t position, std::string_view rule);

}  // namespace weft
