// Sums, conversions and fills. The contracts that hold for every operation: weft/device/operations.h.
#pragma once

#include <cstdint>

#include "weft/device/tensor.h"

namespace weft {

// y = a + b, elementwise; y may be a's or b's memory.
struct Add {
  Tensor a, b, y;
};
// y = x converted to y's dtype.
struct Cast {
  Tensor x, y;
};
struct Fill {
  Tensor y;
  double value = 0;
};

}  // namespace weft
