// Random choices for tests: a pure function of a seed and a name.
#pragma once

#include <initializer_list>

#include "weft/base/random.h"

namespace weft {

class Dice {
 public:
  explicit Dice(std::uint64_t seed, const char* name = "dice") : key_(random_key(seed, name)) {}
  int below(std::size_t bound) { return static_cast<int>(random_below(key_, next_++, bound)); }
  int between(int first, int last) { return first + below(static_cast<std::size_t>(last - first + 1)); }
  bool yes() { return below(2) == 1; }
  bool once_in(std::size_t times) { return below(times) == 0; }
  template <class T>
  T of(std::initializer_list<T> list) {
    return list.begin()[below(list.size())];
  }

 private:
  std::uint64_t key_, next_ = 0;
};

}  // namespace weft
