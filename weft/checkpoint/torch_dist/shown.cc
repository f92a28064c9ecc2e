#include "weft/checkpoint/torch_dist/shown.h"

#include <fmt/format.h>

namespace weft {

std::string shown(std::string_view text) {
  constexpr std::size_t longest = 160;
  std::string result = "'";
  for (const char c : text.substr(0, longest)) {
    if (c >= ' ' && c <= '~')
      result += c;
    else
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return result + (text.size() > longest ? "...'" : "'");
}

}  // namespace weft
