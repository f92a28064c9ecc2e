// A view of device memory. Owns nothing; the plan's arena does.
#pragma once

#include <cstddef>

#include "weft/base/dtype.h"
#include "weft/base/shape.h"

namespace weft {

struct Tensor {
  void* data = nullptr;  // in device memory; null in dry runs
  DType dtype = DType::f32;
  Shape shape;
  std::int64_t stride = 0;  // elements from one row of dim 0 to the next; rows themselves are contiguous

  Tensor() = default;
  Tensor(void* at, DType type, const Shape& extents)
      : data(at),
        dtype(type),
        shape(extents),
        stride(extents.dims() > 0 && extents[0] > 0 ? extents.elements() / extents[0] : 1) {}

  bool given() const { return shape.dims() > 0; }  // optional arguments are default-made tensors
  std::int64_t rows() const { return shape[0]; }
  std::int64_t columns() const { return shape[0] > 0 ? shape.elements() / shape[0] : 0; }
  bool contiguous() const { return stride == columns() || shape[0] <= 1; }
  std::size_t bytes() const { return static_cast<std::size_t>(shape.elements()) * size_of(dtype); }

  // Rows [first, first + count) of dim 0.
  Tensor slice_rows(std::int64_t first, std::int64_t count) const;
  // Columns [first, first + count) of a matrix; keeps the stride.
  Tensor slice_columns(std::int64_t first, std::int64_t count) const;
  // The same contiguous memory under another shape.
  Tensor reshape(const Shape& extents) const;

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

}  // namespace weft
