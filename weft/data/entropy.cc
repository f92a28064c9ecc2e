#include "weft/data/entropy.h"

#include <array>
#include <cmath>
#include <cstdint>

namespace weft {

double letter_entropy(std::string_view text) {
  std::array<std::int64_t, 256> counts{};
  for (unsigned char byte : text) ++counts[byte];
  double nats = 0;
  for (std::int64_t count : counts) {
    if (count == 0) continue;
    const double share = static_cast<double>(count) / static_cast<double>(text.size());
    nats -= share * std::log(share);
  }
  return nats;
}

}  // namespace weft
