// Random segments of a pattern, for the stages of pipelines.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "tests/base/dice.h"

namespace weft {

// The main part in that many segments, cut between any of its items.
inline std::string in_segments(const std::string& pattern, int segments, Dice& dice) {
  const std::size_t end = std::min(pattern.find('/'), pattern.size());
  std::vector<std::string> items;
  for (std::size_t at = 0; at < end;) {
    const std::size_t next = pattern[at] == '[' ? pattern.find(']', at) + 1 : at + 1;
    if (pattern[at] != '|') items.push_back(pattern.substr(at, next - at));
    at = next;
  }
  std::vector<int> cuts;
  for (int i = 1; i < segments; ++i) cuts.push_back(dice.between(0, static_cast<int>(items.size())));
  std::string text;
  for (int i = 0; i <= static_cast<int>(items.size()); ++i) {
    text.append(static_cast<std::size_t>(std::count(cuts.begin(), cuts.end(), i)), '|');
    if (i < static_cast<int>(items.size())) text += items[static_cast<std::size_t>(i)];
  }
  return text + pattern.substr(end);
}

}  // namespace weft
