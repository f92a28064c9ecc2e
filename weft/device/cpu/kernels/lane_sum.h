// Sums over a row, vectorised in an order of our own: 32 lanes, which are then added by halves. The order of the
// compiler's own reductions is that of the vectors it happens to choose, which may differ between two copies of one
// loop; and they add their lanes one by one, which short rows feel.
#pragma once

#include <cstdint>

#include "weft/device/cpu/kernels/fast_math.h"

namespace weft::WEFT_ISA {

// The sum of term(j) for j in [0, count); term may store something, and is called once for each j. Mark the lambda
// always_inline.
template <class Acc, class Term>
WEFT_INLINE Acc lane_sum(std::int64_t count, const Term& term) {
  constexpr int width = 32;
  Acc lanes[width] = {};
  std::int64_t j = 0;
  for (; j + width <= count; j += width) {
#pragma omp simd
    for (int lane = 0; lane < width; ++lane) lanes[lane] += term(j + lane);
  }
  for (int lane = 0; j < count; ++j, ++lane) lanes[lane] += term(j);
#pragma GCC unroll 5
  for (int half = width / 2; half > 0; half /= 2) {
#pragma omp simd
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

}  // namespace weft::WEFT_ISA
