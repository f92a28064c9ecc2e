#include "weft/data/permutation.h"

#include <bit>

#include "weft/base/error.h"
#include "weft/base/random.h"

namespace weft {

Permutation::Permutation(std::uint64_t key, std::uint64_t size)
    : key_(key), size_(size), half_bits_(size < 2 ? 0 : (std::bit_width(size - 1) + 1) / 2) {}

std::uint64_t Permutation::operator()(std::uint64_t index) const {
  WEFT_CHECK(index < size_, "entry {} of {}", index, size_);
  constexpr std::uint64_t rounds = 6;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  do {
    std::uint64_t left = index >> half_bits_, right = index & mask;
    for (std::uint64_t round = 0; round < rounds; ++round) {
      const std::uint64_t mixed = left ^ (philox(key_, (round << 32) | right)[0] & mask);
      left = right;
      right = mixed;
    }
    index = (left << half_bits_) | right;
  } while (index >= size_);
  return index;
}

}  // namespace weft
