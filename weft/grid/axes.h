// An axis of a grid of ranks: a name and a size.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft {

struct Axis {
  std::string name;
  int size = 1;

  bool operator==(const Axis&) const = default;
};

// "tp=2,dp=4" -> axes. UserError with a caret line for a missing '=', name or number.
std::vector<Axis> parse_axes(std::string_view text);

}  // namespace weft
