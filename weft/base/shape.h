// The extents of a tensor, outermost first. At most five dims; a scalar has none.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace weft {

class Shape {
 public:
  static constexpr int max_dims = 5;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents);
  void append(std::int64_t extent);

  int dims() const { return dims_; }
  std::int64_t operator[](int dim) const;  // negative counts from the end
  std::int64_t elements() const;
  // Product of all extents but the last: any tensor can be viewed as the matrix [rows(), (*this)[-1]].
  std::int64_t rows() const;
  bool operator==(const Shape&) const = default;

 private:
  std::array<std::int64_t, max_dims> extents_{};
  int dims_ = 0;
};

std::string to_text(const Shape& shape);  // "[2, 3]"

}  // namespace weft
