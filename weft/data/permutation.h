// A pseudo-random permutation of [0, size) that needs no memory: entry i is computed from (key, i) alone, so a shuffled
// order has random access. (A Feistel network of Philox rounds over the next power of four; values outside the range
// are sent through it again.)
#pragma once

#include <cstdint>

namespace weft {

class Permutation {
 public:
  Permutation(std::uint64_t key, std::uint64_t size);

  std::uint64_t operator()(std::uint64_t index) const;

 private:
  std::uint64_t key_, size_;
  int half_bits_;
};

}  // namespace weft
