#include "weft/device/argument_checks.h"
#include "weft/device/argument_fits.h"

namespace weft {

namespace {

void check_slab(const Fits& fits, const AdamSlab& slab) {
  const DType acc = accumulator_of(slab.weight);
  fits(slab.m.dtype == acc && slab.v.dtype == acc, "m or v are not f32 (f64 for f64 weights)");
  const bool split = slab.weight.dtype == DType::bf16;
  fits(slab.remainder.given() == split && (!split || slab.remainder.dtype == DType::i16),
       "bf16 weights have remainders of i16, others none");
  fits(slab.gradient.dtype == acc || slab.gradient.dtype == DType::bf16, "the gradient is neither acc nor bf16");
  const std::int64_t count = slab.weight.shape.elements();
  for (const Tensor* tensor : {&slab.weight, &slab.remainder, &slab.m, &slab.v, &slab.gradient}) {
    if (!tensor->given()) continue;
    fits(tensor->shape.elements() == count, "a slab's tensors differ in length");
    fits(tensor->contiguous(), "needs contiguous tensors");
  }
}

}  // namespace

void check_arguments(const char* operation, const Embedding& op) {
  const Fits fits(operation);
  fits(op.tokens.dtype == DType::i32 && op.tokens.shape.elements() == op.y.rows(), "tokens are not i32 [T]");
  fits(op.y.rows() == 0 || op.weight.columns() == op.y.columns(), "weight and y differ in columns");
}

void check_arguments(const char* operation, const EmbeddingGradient& op) {
  const Fits fits(operation);
  fits(op.tokens.dtype == DType::i32 && op.tokens.shape.elements() == op.dy.rows(), "tokens are not i32 [T]");
  fits(op.dy.rows() == 0 || op.dy.columns() == op.dweight.columns(), "dweight and dy differ in columns");
}

void check_arguments(const char* operation, const CrossEntropy& op) {
  const Fits fits(operation);
  const std::int64_t rows = op.logits.rows();
  const DType acc = accumulator_of(op.logits);
  fits(rows == 0 || (op.vocabulary >= 1 && op.vocabulary <= op.logits.columns()),
       "the vocabulary exceeds the logits' columns");
  fits(op.labels.dtype == DType::i32 && op.labels.shape.elements() == rows, "labels are not i32 [S]");
  fits(!op.row_losses.given() || op.row_losses.shape.elements() == rows, "row_losses are not [S]");
  fits(op.loss.dtype == acc && (!op.row_losses.given() || op.row_losses.dtype == acc), "the losses are not acc");
  fits(!op.dlogits.given() || same_size(op.logits, op.dlogits), "logits and dlogits differ in shape");
  fits.scalar(op.scale);
}

void check_arguments(const char* operation, const SumOfSquares& op) {
  const Fits fits(operation);
  fits(op.out.dtype == DType::f64, "its result is not f64");
  for (const Tensor& x : op.x) fits(x.contiguous(), "needs contiguous tensors");
}

void check_arguments(const char* operation, const ClipFactor& op) {
  const Fits fits(operation);
  fits(!op.sum.given() || op.sum.dtype == DType::f64, "the sum is not f64");
  if (op.loss.given()) fits.scalar(op.loss);
  fits.step_values(op.step_values);
}

void check_arguments(const char* operation, const AdamW& op) {
  const Fits fits(operation);
  fits.step_values(op.step_values);
  for (const AdamSlab& slab : op.slabs) check_slab(fits, slab);
}

}  // namespace weft
