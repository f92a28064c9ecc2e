// Random runs for `weft verify`: a pattern, a layout whose sizes divide, and options, as words of a command line.
#pragma once

#include <cstdint>
#include <string>

namespace weft {

inline constexpr int random_layout_vocabulary = 61;

struct RandomLayout {
  std::string words;  // of `weft verify`, but for a source of data (--mock-data, --data-path)
  std::string order;  // flags that only change the order of a step; "": none
};
// A pure function of the seed.
RandomLayout random_layout(std::uint64_t seed);

}  // namespace weft
