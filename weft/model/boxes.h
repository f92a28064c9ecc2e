// Which elements of a logical parameter a rank holds, and where they lie in its memory.
//
// A parameter has a logical shape, the one that checkpoints have. A rank holds a box of it; the box lies in a tensor,
// together with boxes of other parameters (gate above up, all experts of a layer). Everything that reads or writes
// parameters goes by identity and box, in bytes of the tensor's type: initial values, digests, files, comparisons.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "weft/base/dtype.h"
#include "weft/base/shape.h"

namespace weft {

// Of every dim d of a parameter, the indices begin[d] to begin[d] + extent[d] - 1.
struct Box {
  std::array<std::int64_t, Shape::max_dims> begin{};
  Shape extent;

  static Box whole(const Shape& shape) { return {{}, shape}; }
  bool operator==(const Box&) const = default;
};

// Where a box lies in a tensor: row-major from element `offset` on. Where the rows of two parameters alternate (gate and
// up), `rows_together` rows of one follow each other, and a next such block begins `block_stride` elements after the last.
struct BoxPlace {
  std::int64_t offset = 0;
  std::int64_t rows_together = 0;  // 0: all
  std::int64_t block_stride = 0;
};

// `count` elements that follow each other both in the logical parameter and in the tensor.
struct BoxRun {
  std::int64_t logical = 0, tensor = 0, count = 0;
};

// The runs of a box, in the order of the logical parameter.
class BoxRuns {
 public:
  BoxRuns(const Shape& logical, const Box& box, const BoxPlace& place);

  std::int64_t size() const { return runs_; }
  BoxRun operator[](std::int64_t index) const;
  // Those with elements in [first, first + count) of the logical parameter, cut to that range.
  void within(std::int64_t first, std::int64_t count, const std::function<void(const BoxRun&)>& visit) const;

 private:
  Shape logical_;
  Box box_;
  BoxPlace place_;
  int outer_ = 0;  // dims that are counted run by run
  std::int64_t run_length_ = 1, runs_ = 0;
  std::int64_t row_ = 1;                                 // elements of a row of the box: all dims but the first
  std::array<std::int64_t, Shape::max_dims> strides_{};  // of the logical parameter
};

// The elements of a parameter tensor on the host.
struct HostTensor {
  DType dtype = DType::f32;
  std::vector<std::byte> bytes;

  HostTensor() = default;
  HostTensor(DType type, std::int64_t elements)
      : dtype(type), bytes(static_cast<std::size_t>(elements) * size_of(type)) {}
  std::int64_t elements() const { return static_cast<std::int64_t>(bytes.size() / size_of(dtype)); }
  std::byte* at(std::int64_t element) { return bytes.data() + static_cast<std::size_t>(element) * size_of(dtype); }
  const std::byte* at(std::int64_t element) const {
    return bytes.data() + static_cast<std::size_t>(element) * size_of(dtype);
  }
};

// The numbers of f32, f64 or bf16. Setting one rounds it once to the tensor's type.
double number_at(const HostTensor& tensor, std::int64_t element);
void set_number(HostTensor& tensor, std::int64_t element, double number);

}  // namespace weft
