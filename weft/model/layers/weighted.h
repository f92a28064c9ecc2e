// The two weighted steps that nearly every layer consists of: a product and an RMS norm, each with its gradients.
#pragma once

#include "weft/model/builder.h"

namespace weft {

// out = in W^T (+ bias): W [n, k], in [T, k], out [T, n].
struct Linear : ParameterValues {
  ParameterValues bias = {};
  bool has_bias() const { return bias.value.valid(); }

  void forward(const Run& r, const Tensor& in, const Tensor& out, const Tensor& residual = {}) const;
  void backward(const Run& r, const Tensor& dout, const Tensor& din) const;
  void weight_gradient(const Run& r, ValueId dout, ValueId in) const;
  void bias_gradient(const Run& r, ValueId dout) const;
};

struct Norm : ParameterValues {
  double epsilon = 0;
  bool zero_centred = false;
  std::int64_t groups = 1;  // equal parts of a row, each normalised on its own

  void forward(const Run& r, const Tensor& x, const Tensor& y, ValueId inverse) const;
  // Adds to the weight's gradient. dx includes the residual's gradient where one is given.
  void backward(const Run& r, const Tensor& x, ValueId inverse, const Tensor& dy, const Tensor& dx,
                const Tensor& residual = {}) const;
  // Adds only what `counted` rows contribute to the weight's gradient; what the others do goes to `unused`, scratch like
  // the gradient. Where all rows are counted it may be invalid.
  void backward(const Run& r, const Tensor& x, ValueId inverse, const Tensor& dy, const Tensor& dx,
                const Tensor& residual, Range counted, ValueId unused) const;
};

// With the model's epsilon.
Norm add_norm(ModuleBuilder& b, const std::string& name, Role role, std::int64_t width);

}  // namespace weft
