// The parts of numpy that Megatron's sample order uses, bit for bit: the shuffle of a legacy RandomState and the sum of
// an array of doubles. (std::shuffle draws differently, and differently on each platform.)
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace weft {

class NumpyRandomState {
 public:
  explicit NumpyRandomState(std::uint32_t seed) : engine_(seed) {}

  // A whole number in [0, max], as the shuffle draws it: 32 random bits under the smallest mask that covers max, until
  // one fits.
  std::uint32_t interval(std::uint32_t max);

  template <class T>
  void shuffle(std::span<T> values) {
    for (std::size_t i = values.size(); i-- > 1;) {
      std::swap(values[i], values[interval(static_cast<std::uint32_t>(i))]);
    }
  }

 private:
  std::mt19937 engine_;  // the standard fixes its values
};

// numpy.sum of a contiguous float64 array: pairwise, in blocks of at most 128 with eight running sums.
double numpy_sum(std::span<const double> values);

}  // namespace weft
