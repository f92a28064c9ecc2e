// Cuts one piece of scratch memory into arrays; with null it only counts.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::cuda {

class Carve {
 public:
  explicit Carve(void* at) : at_(static_cast<unsigned char*>(at)) {}
  template <class T>
  T* take(std::int64_t count) {
    T* here = at_ != nullptr ? reinterpret_cast<T*>(at_ + used_) : nullptr;
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + 255) / 256 * 256;
    return here;
  }
  std::size_t bytes() const { return used_; }

 private:
  unsigned char* at_;
  std::size_t used_ = 0;
};

}  // namespace weft::cuda
