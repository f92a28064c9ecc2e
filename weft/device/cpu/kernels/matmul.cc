#include "weft/device/operations/matmul.h"

#include "weft/device/cpu/kernels/blocked_gemm.h"
#include "weft/device/cpu/kernels/dispatch.h"

namespace weft::WEFT_ISA {

void matmul(Stream& stream, const Matmul& op) {
  const auto fits = [](bool condition, const char* why) { require(condition, "matmul", why); };
  fits(op.a.shape.dims() == 2 && op.b.shape.dims() == 2 && op.c.shape.dims() == 2, "its operands are not matrices");
  const bool ta = op.transpose_a == Transposed::yes, tb = op.transpose_b == Transposed::yes;
  Product x;
  x.m = op.c.shape[0];
  x.n = op.c.shape[1];
  x.k = ta ? op.a.shape[0] : op.a.shape[1];
  fits((ta ? op.a.shape[1] : op.a.shape[0]) == x.m, "a and c differ in rows");
  fits((tb ? op.b.shape[0] : op.b.shape[1]) == x.n, "b and c differ in columns");
  fits((tb ? op.b.shape[1] : op.b.shape[0]) == x.k, "a and b differ in the dim that is summed over");
  x.a = {op.a.data, op.a.dtype, op.a.stride, !ta};
  x.b = {op.b.data, op.b.dtype, op.b.stride, tb};
  x.c = op.c.data;
  x.c_dtype = op.c.dtype;
  x.c_stride = op.c.stride;
  x.add = op.store == Store::add;
  if (op.bias.given()) {
    fits(op.bias.shape.elements() == x.n, "bias and c differ in columns");
    x.bias = op.bias.data;
    x.bias_dtype = op.bias.dtype;
  }
  if (op.residual.given()) {
    fits(!x.add, "a residual goes only with Store::write");
    fits(op.residual.dtype == op.c.dtype && op.residual.shape == op.c.shape, "residual and c differ");
    x.residual = op.residual.data;
    x.residual_stride = op.residual.stride;
  }
  multiply(team_of(stream), x);
}

}  // namespace weft::WEFT_ISA
