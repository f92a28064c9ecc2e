// How much memory the calling thread takes from operator new, for tests that bound it. (The program's operator new counts.)
#pragma once

#include <cstddef>

namespace weft {

class CountedMemory {
 public:
  CountedMemory();
  std::size_t peak() const;  // most bytes more than at its beginning that were held at one time

 private:
  std::ptrdiff_t before_;
};

}  // namespace weft
