#pragma once

#include <cstddef>
#include <cstdint>

#ifndef WEFT_ISA
#error "kernels are compiled per instruction set"
#endif

namespace weft::WEFT_ISA {

// Cuts one piece of thread scratch into arrays: first pass counts, second hands out.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <class T>
  T* take(std::int64_t count) {
    T* at = reinterpret_cast<T*>(base_ == nullptr ? nullptr : base_ + used_);
    used_ += (static_cast<std::size_t>(count + 16) * sizeof(T) + 63) / 64 * 64;  // 16: room for whole-vector stores
    return at;
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

}  // namespace weft::WEFT_ISA
