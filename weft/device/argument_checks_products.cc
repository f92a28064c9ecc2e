#include "weft/device/argument_checks.h"
#include "weft/device/argument_fits.h"

namespace weft {

namespace {

// Groups of the rows of `matrix`, each of which has a row of `of_groups`.
void check_groups(const Fits& fits, const Groups& groups, const Tensor& of_groups, const Tensor& matrix) {
  fits(groups.counts.dtype == DType::i32 && groups.offsets.dtype == DType::i32 &&
           groups.counts.shape.elements() == of_groups.rows(),
       "counts or offsets do not fit the groups");
  fits(matrix.rows() == 0 || of_groups.rows() == 0 || matrix.columns() == of_groups.columns(),
       "the rows and what their groups have differ in columns");
}

void check_scales(const Fits& fits, const Tensor& scale, const Tensor& matrix) {
  fits(scale.dtype == accumulator_of(matrix) && scale.shape.elements() == matrix.rows(), "the scale is not acc [rows]");
}

}  // namespace

void check_arguments(const char* operation, const Matmul& op) {
  const Fits fits(operation);
  fits(op.a.shape.dims() == 2 && op.b.shape.dims() == 2 && op.c.shape.dims() == 2, "its operands are not matrices");
  const bool ta = op.transpose_a == Transposed::yes, tb = op.transpose_b == Transposed::yes;
  fits(op.a.shape[ta ? 1 : 0] == op.c.shape[0], "a and c differ in rows");
  fits(op.b.shape[tb ? 0 : 1] == op.c.shape[1], "b and c differ in columns");
  fits(op.a.shape[ta ? 0 : 1] == op.b.shape[tb ? 1 : 0], "a and b differ in the dim that is summed over");
  fits(!op.bias.given() || op.bias.shape.elements() == op.c.shape[1], "bias and c differ in columns");
  if (!op.residual.given()) return;
  fits(op.store == Store::write, "a residual goes only with Store::write");
  fits(op.residual.dtype == op.c.dtype && op.residual.shape == op.c.shape, "residual and c differ in shape or dtype");
}

void check_arguments(const char* operation, const ColumnSum& op) {
  const Fits fits(operation);
  fits(op.x.rows() == 0 || op.x.columns() == op.y.shape.elements(), "y does not have x's columns");
  fits(!op.rows_in_use.given() || op.rows_in_use.dtype == DType::i32, "rows_in_use is not i32");
}

void check_arguments(const char* operation, const GroupedColumnSum& op) {
  check_groups(Fits(operation), op.groups, op.y, op.x);
}

void check_arguments(const char* operation, const GroupedBias& op) {
  const Fits fits(operation);
  check_groups(fits, op.groups, op.bias, op.y);
  check_scales(fits, op.scale, op.y);
}

void check_arguments(const char* operation, const GroupedBiasGradient& op) {
  const Fits fits(operation);
  check_groups(fits, op.groups, op.dbias, op.dy);
  check_scales(fits, op.scale, op.dy);
}

void check_arguments(const char* operation, const GroupedBiasScaleGradient& op) {
  const Fits fits(operation);
  check_groups(fits, op.groups, op.bias, op.dy);
  check_scales(fits, op.dscale, op.dy);
}

void check_arguments(const char* operation, const Add& op) {
  const Fits fits(operation);
  fits(same_size(op.a, op.y) && same_size(op.b, op.y), "a, b and y differ in shape");
}

void check_arguments(const char* operation, const Cast& op) {
  const Fits fits(operation);
  fits(same_size(op.x, op.y), "x and y differ in shape");
}

}  // namespace weft
