// The ranks that divide a layer, as the layer sees them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "weft/grid/layout.h"

namespace weft {

// `count` things from `first` on.
struct Range {
  std::int64_t first = 0, count = 0;
};

struct TensorRanks {
  std::int64_t size = 1, rank = 0;
  GroupId group;
  // Also the tokens of the residual stream are divided: rank r has the r-th of `size` equal parts of a micro-batch. Otherwise
  // every rank has all of it.
  bool sequence = false;

  bool divide() const { return size > 1; }
  // Of n things this rank has the r-th part, of equal size but for the last ones, which may have less or nothing.
  std::int64_t share(std::int64_t n) const { return (n + size - 1) / size; }
  Range part_of(std::int64_t n) const {
    const std::int64_t first = std::min(rank * share(n), n);
    return {first, std::min(share(n), n - first)};
  }
};

}  // namespace weft
