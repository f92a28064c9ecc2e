#include "weft/data/numpy_random.h"

#include <bit>

namespace weft {

std::uint32_t NumpyRandomState::interval(std::uint32_t max) {
  if (max == 0) return 0;  // draws nothing
  const auto mask = static_cast<std::uint32_t>((std::uint64_t{1} << std::bit_width(max)) - 1);
  while (true) {
    const auto value = static_cast<std::uint32_t>(engine_()) & mask;
    if (value <= max) return value;
  }
}

double numpy_sum(std::span<const double> values) {
  const std::size_t n = values.size();
  if (n < 8) {
    double sum = 0;
    for (double value : values) sum += value;
    return sum;
  }
  if (n > 128) {
    const std::size_t half = n / 2 - (n / 2) % 8;
    return numpy_sum(values.first(half)) + numpy_sum(values.subspan(half));
  }
  double running[8];
  for (std::size_t lane = 0; lane < 8; ++lane) running[lane] = values[lane];
  std::size_t i = 8;
  for (; i < n - n % 8; i += 8) {
    for (std::size_t lane = 0; lane < 8; ++lane) running[lane] += values[i + lane];
  }
  double sum =
      ((running[0] + running[1]) + (running[2] + running[3])) + ((running[4] + running[5]) + (running[6] + running[7]));
  for (; i < n; ++i) sum += values[i];
  return sum;
}

}  // namespace weft
