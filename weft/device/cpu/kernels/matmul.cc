#include "weft/device/operations/matmul.h"

#include "weft/device/argument_checks.h"
#include "weft/device/cpu/kernels/blocked_gemm.h"
#include "weft/device/cpu/kernels/dispatch.h"

namespace weft::WEFT_ISA {

void matmul(Stream& stream, const Matmul& op) {
  check_arguments("matmul", op);
  const bool ta = op.transpose_a == Transposed::yes, tb = op.transpose_b == Transposed::yes;
  Product x;
  x.m = op.c.shape[0];
  x.n = op.c.shape[1];
  x.k = ta ? op.a.shape[0] : op.a.shape[1];
  x.a = {op.a.data, op.a.dtype, op.a.stride, !ta};
  x.b = {op.b.data, op.b.dtype, op.b.stride, tb};
  x.c = op.c.data;
  x.c_dtype = op.c.dtype;
  x.c_stride = op.c.stride;
  x.add = op.store == Store::add;
  if (op.bias.given()) {
    x.bias = op.bias.data;
    x.bias_dtype = op.bias.dtype;
  }
  if (op.residual.given()) {
    x.residual = op.residual.data;
    x.residual_stride = op.residual.stride;
  }
  multiply(team_of(stream), x);
}

}  // namespace weft::WEFT_ISA
