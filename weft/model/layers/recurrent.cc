#include "weft/model/layers/recurrent.h"

#include <cmath>

#include "weft/device/operations.h"

namespace weft {

void Projections::enter(const Run& r) const {
  r.ops().rms_norm(r.stream(), {r[x], r[norm.value], r[xn], r[inverse], 1, eps, zero_centred});
  r.ops().matmul(r.stream(), {r[xn], r[w_in.value], r[in], Transposed::no, Transposed::yes});
}

void Projections::leave(const Run& r) const {
  Matmul out{r[gated], r[w_out.value], r[y], Transposed::no, Transposed::yes};
  out.residual = r[x];
  r.ops().matmul(r.stream(), out);
}

void Projections::leave_backward(const Run& r) const { r.ops().matmul(r.stream(), {r[dy], r[w_out.value], r[dgated]}); }

void Projections::enter_backward(const Run& r) const {
  r.ops().matmul(r.stream(), {r[din], r[w_in.value], r[dxn]});
  r.ops().rms_norm_backward(r.stream(), {r[x], r[norm.value], r[inverse], r[dxn], r[dx], r[dy], r[norm.gradient], 1,
                                         zero_centred, r.store(norm.gradient)});
}

PieceCode Projections::weight_gradient() const {
  return {{{dy}, {gated}, {din}, {xn}, {w_out.gradient, Access::add}, {w_in.gradient, Access::add}},
          [p = *this](const Run& r) {
            const auto gradient = [&](ValueId d, ValueId from, ParameterValues w) {
              r.ops().matmul(r.stream(),
                             {r[d], r[from], r[w.gradient], Transposed::yes, Transposed::no, r.store(w.gradient)});
            };
            gradient(p.dy, p.gated, p.w_out);
            gradient(p.din, p.xn, p.w_in);
          }};
}

Init convolution_init(std::int64_t taps) {
  const double bound = 1 / std::sqrt(static_cast<double>(taps));
  return {Init::Kind::uniform, -bound, bound};
}

}  // namespace weft
