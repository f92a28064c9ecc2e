// Which layers of a transformer are of a kind, as Megatron's flags write it: a number k, or a list with a number per
// layer, "[0,1,1]", often as an expression of Python: "([0]*3+[1]*13)".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

struct LayerChoice {
  std::int64_t number = 0;         // k; 0: see list
  std::vector<std::uint8_t> list;  // 0 or 1 per layer; empty: see number
  std::string text;                // "2", or the list as it was written; empty: nothing is chosen

  bool operator==(const LayerChoice&) const = default;
};

// Expressions have whole numbers, lists of them, + (also joins lists), * (also repeats a list) and parentheses.
// UserError: what is wrong with the text.
LayerChoice parse_layer_choice(std::string_view text);

}  // namespace weft
