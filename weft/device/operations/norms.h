// RMS norm and layer norm. The contracts that hold for every operation: weft/device/operations.h.
#pragma once

#include <cstdint>

#include "weft/device/operations/store.h"
#include "weft/device/tensor.h"

namespace weft {

// A row of x holds `groups` parts of `width` elements; each part is normalised by itself:
//   inverse = rsqrt(mean(x^2) + eps);   y = x * inverse * weight        (zero_centred: * (1 + weight))
// weight: [width] shared by the parts, or [groups * width]. inverse: acc [rows * groups], may be absent.
struct RmsNorm {
  Tensor x, weight, y, inverse;
  std::int64_t groups = 1;
  double eps = 1e-5;
  bool zero_centred = false;
};
// dx = (residual +) gradient of x. residual: [rows, columns], may be absent. dx may be dy's or residual's memory.
// dweight (+)= sum over rows (and over parts, if the weight is shared) of dy * x * inverse; of weight's length.
struct RmsNormBackward {
  Tensor x, weight, inverse, dy, dx, residual, dweight;
  std::int64_t groups = 1;
  bool zero_centred = false;
  Store store = Store::write;  // of dweight
};

// Layer norm of whole rows:
//   mean = mean(x), inverse = rsqrt(mean((x - mean)^2) + eps), y = (x - mean) inverse weight + bias
// weight, bias: [columns]. mean, inverse: acc [rows], may be absent together.
struct LayerNorm {
  Tensor x, weight, bias, y, mean, inverse;
  double eps = 1e-5;
};
// dx = gradient of x. dx may be dy's memory.
struct LayerNormBackward {
  Tensor x, weight, mean, inverse, dy, dx;
};
// dweight (+)= sum over rows of dy (x - mean) inverse;  dbias (+)= sum over rows of dy.
struct LayerNormWeightGradient {
  Tensor x, mean, inverse, dy, dweight, dbias;
  Store weight_store = Store::write, bias_store = Store::write;
};

}  // namespace weft
