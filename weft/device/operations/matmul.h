// Products and column sums. The contracts that hold for every operation: weft/device/operations.h.
#pragma once

#include <cstdint>

#include "weft/device/operations/store.h"
#include "weft/device/tensor.h"

namespace weft {

enum class Transposed : std::uint8_t { no, yes };

// c [m, n] (+)= op(a) op(b) (+ bias [n] on every row) (+ residual [m, n]).   op(a) is [m, k], op(b) is [k, n].
// a, b: any of f32, f64, bf16 (they may differ); c: f32, f64 or bf16; strided rows allowed.
struct Matmul {
  Tensor a, b, c;
  Transposed transpose_a = Transposed::no, transpose_b = Transposed::no;
  Store store = Store::write;
  Tensor bias;
  Tensor residual;  // of c's dtype; only with Store::write
};

// Rows of a tensor in groups, one per expert: group g holds rows offsets[g] .. offsets[g] + counts[g] - 1.
// Both are i32 in device memory. offsets [groups + 1] may be aligned, so rows between a group's end and the next
// group's start are padding: zero in every input, ignored in every output.
struct Groups {
  Tensor counts;   // [groups]
  Tensor offsets;  // [groups + 1]
};

// For every group g, x [R, k], w [G, n, k], y [R, n]:
//   forward          y_g = x_g w_g^T (+ bias [G, n])
//   input_gradient   x_g = y_g w_g
//   weight_gradient  w_g (+)= y_g^T x_g      (an empty group writes zeros, or adds nothing)
struct GroupedMatmul {
  enum class Mode : std::uint8_t { forward, input_gradient, weight_gradient };
  Mode mode = Mode::forward;
  Tensor x, w, y;
  Groups groups;
  Store store = Store::write;  // weight_gradient only
  Tensor bias;                 // forward only
};

// y (+)= sum over rows of x [R, n] -> [n]; rows_in_use: i32 [1], absent: all.
struct ColumnSum {
  Tensor x, y;
  Store store = Store::write;
  Tensor rows_in_use;
};
// For every group: y [G, n] (+)= column sum of x_g.
struct GroupedColumnSum {
  Tensor x, y;
  Groups groups;
  Store store = Store::write;
};

// A bias [G, n] on rows that carry a weight (a router's), for every row r of every group g; scale: acc [R]:
//   y[r] += scale[r] bias[g]
struct GroupedBias {
  Tensor y, bias, scale;
  Groups groups;
};
// dbias[g] (+)= sum over the group's rows, in order, of scale[r] dy[r].
struct GroupedBiasGradient {
  Tensor dy, scale, dbias;
  Groups groups;
  Store store = Store::write;
};
// dscale[r] += sum over n of dy[r] bias[g]; dscale: acc [R].
struct GroupedBiasScaleGradient {
  Tensor dy, bias, dscale;
  Groups groups;
};

}  // namespace weft
