// What the checks of argument_checks.h are written with.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "weft/device/operations/optimizer.h"
#include "weft/device/refuse.h"
#include "weft/device/tensor.h"

namespace weft {

inline bool same_size(const Tensor& a, const Tensor& b) {
  return a.rows() == b.rows() && a.shape.elements() == b.shape.elements();
}
inline bool is_matrix(const Tensor& x, std::int64_t rows, std::int64_t columns) {
  return x.rows() == rows && x.columns() == columns;
}
inline DType accumulator_of(const Tensor& x) { return x.dtype == DType::f64 ? DType::f64 : DType::f32; }

class Fits {
 public:
  explicit Fits(const char* operation) : operation_(operation) {}

  void operator()(bool condition, const char* why) const {
    if (!condition) refuse(operation_, why);
  }
  struct Gradient {
    const Tensor &gradient, &of;
  };
  void alike(const Tensor& a, const Tensor& b, const char* why) const {
    (*this)(same_size(a, b) && a.dtype == b.dtype, why);
  }
  void gradients(std::initializer_list<Gradient> all) const {
    for (const auto& [gradient, of] : all)
      (*this)(same_size(gradient, of) && gradient.dtype == of.dtype,
              "a gradient differs from its tensor in shape or dtype");
  }
  void boundaries(const Tensor& starts, std::int64_t tokens) const {
    (*this)(!starts.given() || (starts.dtype == DType::i32 && starts.shape.elements() == tokens),
            "boundaries is not i32 [T]");
  }
  // Attention's: documents, or sequences of `length`.
  void sequences(const Tensor& starts, std::int64_t length, std::int64_t tokens) const {
    boundaries(starts, tokens);
    (*this)(starts.given() || (length > 0 && tokens % length == 0), "T is not a multiple of length");
  }
  // Of recurrences.
  void chunks(const Tensor& starts, std::int64_t length, std::int64_t chunk, std::int64_t tokens) const {
    (*this)(chunk >= 1, "a chunk has at least one token");
    (*this)(length == 0 || tokens % length == 0, "T is not a multiple of length");
    boundaries(starts, tokens);
  }
  void scalar(const Tensor& one) const {
    (*this)(one.dtype == DType::f32 || one.dtype == DType::f64, "needs its scalars in f32 or f64");
  }
  void step_values(const Tensor& values) const {
    (*this)(values.dtype == DType::f64 && values.shape.elements() >= StepValues::count,
            "step_values are not f64 [count]");
  }

 private:
  const char* operation_;
};

}  // namespace weft
