// The causal convolution before a recurrence (`M`, `G`), with its gradients.
#pragma once

#include "weft/model/layers/residual_block.h"

namespace weft {

struct Convolution : ParameterValues {  // [channels, taps]
  ParameterValues bias = {};            // [channels]; invalid: none
  std::int64_t length = 0;              // of a sequence
  ValueId boundaries = {};              // of documents in it; may be invalid
  // Channels after `own` that several tensor ranks have, each some of them (SharedInput).
  std::int64_t own = 0;  // 0: all
  ParameterValues shared_weight = {}, shared_bias = {};
  std::vector<SharedInput::Used> shared = {};
  bool has_bias() const { return bias.value.valid(); }

  void forward(const Run& r, const Tensor& x, const Tensor& y) const;
  bool shares() const { return shared_weight.value.valid(); }
  // Writes dx, and adds to the gradients of weight and bias: they are too small for a separate phase.
  void backward(const Run& r, const Tensor& x, const Tensor& dy, const Tensor& dx) const;
};

// PyTorch's initialization of a convolution with this many taps.
Init convolution_init(std::int64_t taps);

}  // namespace weft
