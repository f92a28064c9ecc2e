// Two checkpoints, tensor by tensor. Memory is some boxes of at most 2^20 elements, however large tensors are.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/checkpoint/tensor_view.h"

namespace weft {

enum class TensorVerdict : std::uint8_t {
  equal,        // bit for bit
  equal_value,  // of two float types, with the same numbers
  rounded,      // of two float types: the wider one's numbers rounded to the narrower type are the other's
  different,
  other_type,  // and not both floats
  other_shape,
  missing,     // in the second
  unexpected,  // in the second
};
std::string_view name_of(TensorVerdict verdict);  // "equal bit for bit"
// The first three: nothing was lost but digits that the narrower type cannot hold.
bool is_equal(TensorVerdict verdict);

struct TensorComparison {
  std::string name;
  TensorVerdict verdict = TensorVerdict::equal;
  ViewedTensor first, second;  // without a name: it is not there
  // Of `different`: elements whose values differ (of equal types, whose bits do), the largest difference of two numbers, as
  // it is and as a share of the larger magnitude, and the elements where a NaN or an infinity meets another value, which
  // those two leave out.
  std::int64_t differing = 0, not_finite = 0;
  double max_absolute = 0, max_relative = 0;
};

struct CompareOptions {
  std::function<bool(const std::string& name)> wanted = {};  // absent: all
  std::function<void(std::size_t bytes)> progress = {};      // of the first that have been compared
};
// In the order of names.
std::vector<TensorComparison> compare(const TensorView& first, const TensorView& second, const CompareOptions& options);

}  // namespace weft
