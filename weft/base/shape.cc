#include "weft/base/shape.h"

#include "weft/base/error.h"

namespace weft {

Shape::Shape(std::initializer_list<std::int64_t> extents) {
  for (std::int64_t extent : extents) append(extent);
}

void Shape::append(std::int64_t extent) {
  WEFT_CHECK(dims_ < max_dims, "a shape has at most {} dims", max_dims);
  WEFT_CHECK(extent >= 0, "extent {}", extent);
  extents_[static_cast<std::size_t>(dims_++)] = extent;
}

std::int64_t Shape::operator[](int dim) const {
  const int at = dim < 0 ? dims_ + dim : dim;
  WEFT_CHECK(at >= 0 && at < dims_, "dim {} of {}", dim, to_text(*this));
  return extents_[static_cast<std::size_t>(at)];
}

std::int64_t Shape::elements() const {
  std::int64_t product = 1;
  for (int i = 0; i < dims_; ++i) product *= extents_[static_cast<std::size_t>(i)];
  return product;
}

std::int64_t Shape::rows() const {
  std::int64_t product = 1;
  for (int i = 0; i + 1 < dims_; ++i) product *= extents_[static_cast<std::size_t>(i)];
  return product;
}

std::string to_text(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.dims(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace weft
