// Counting shared by the implementations of Communicator.
#pragma once

#include <numeric>

#include "weft/comm/communicator.h"

namespace weft {

inline std::int64_t width_of(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }

inline std::int64_t sum_before(Counts counts, int peer) {
  return std::accumulate(counts.begin(), counts.begin() + peer, std::int64_t{0});
}

// All-reduces of up to this many bytes take one round instead of two: every member sends its whole buffer to every
// other.
constexpr std::int64_t small_all_reduce = 16 * 1024;

}  // namespace weft
