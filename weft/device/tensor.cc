#include "weft/device/tensor.h"

#include "weft/base/error.h"

namespace weft {

namespace {

void* advance(void* data, std::int64_t elements, DType dtype) {
  if (data == nullptr) return nullptr;
  return static_cast<std::byte*>(data) + elements * static_cast<std::int64_t>(size_of(dtype));
}

}  // namespace

Tensor Tensor::slice_rows(std::int64_t first, std::int64_t count) const {
  WEFT_CHECK(first >= 0 && count >= 0 && first + count <= rows(), "rows {}+{} of {}", first, count, to_text(shape));
  Tensor part = *this;
  part.data = advance(data, first * stride, dtype);
  Shape extents{count};
  for (int dim = 1; dim < shape.dims(); ++dim) extents.append(shape[dim]);
  part.shape = extents;
  return part;
}

Tensor Tensor::slice_columns(std::int64_t first, std::int64_t count) const {
  WEFT_CHECK(shape.dims() == 2, "columns of {}", to_text(shape));
  WEFT_CHECK(first >= 0 && count >= 0 && first + count <= shape[1], "columns {}+{} of {}", first, count,
             to_text(shape));
  Tensor part = *this;
  part.data = advance(data, first, dtype);
  part.shape = Shape{shape[0], count};
  return part;
}

Tensor Tensor::reshape(const Shape& extents) const {
  WEFT_CHECK(contiguous() && extents.elements() == shape.elements(), "{} as {}", to_text(shape), to_text(extents));
  return Tensor(data, dtype, extents);
}

}  // namespace weft
