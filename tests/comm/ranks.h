// For tests of communicators: lists of ranks, and tensors that own their memory.
#pragma once

#include <cstring>
#include <numeric>
#include <vector>

#include "weft/comm/host_stream.h"
#include "weft/comm/world.h"

namespace weft {

inline std::vector<RankId> ranks_below(int size) {
  std::vector<RankId> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.emplace_back(rank);
  return ranks;
}

// A one-dimensional tensor with its memory, allocated exactly, so that a sanitizer notices an access beyond it.
class HostTensor {
 public:
  HostTensor(DType dtype, std::int64_t count)
      : bytes_(static_cast<std::size_t>(count) * size_of(dtype), std::byte{0xee}),
        tensor_(bytes_.data(), dtype, Shape{count}) {}
  template <class T>
  explicit HostTensor(const std::vector<T>& values)
      : HostTensor(dtype_of<T>(), static_cast<std::int64_t>(values.size())) {
    if (!values.empty()) std::memcpy(bytes_.data(), values.data(), bytes_.size());
  }
  HostTensor(const HostTensor&) = delete;
  HostTensor& operator=(const HostTensor&) = delete;

  operator const Tensor&() const { return tensor_; }
  const Tensor& tensor() const { return tensor_; }
  template <class T>
  std::vector<T> values() const {
    return std::vector<T>(tensor_.as<T>(), tensor_.as<T>() + tensor_.shape.elements());
  }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
  Tensor tensor_;
};

}  // namespace weft
