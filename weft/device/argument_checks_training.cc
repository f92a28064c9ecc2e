#include <initializer_list>

#include "weft/device/argument_checks.h"
#include "weft/device/argument_fits.h"

namespace weft {

namespace {

// What all optimizers have. states: those of this one.
template <class Slab>
void check_slab(const Fits& fits, const Slab& slab, std::initializer_list<const Tensor*> states) {
  const DType acc = accumulator_of(slab.weight);
  const bool split = slab.weight.dtype == DType::bf16;
  fits(slab.remainder.given() == split && (!split || slab.remainder.dtype == DType::i16),
       "bf16 weights have remainders of i16, others none");
  fits(slab.gradient.dtype == acc || slab.gradient.dtype == DType::bf16, "the gradient is neither acc nor bf16");
  const std::int64_t count = slab.weight.shape.elements();
  const auto check = [&](const Tensor& tensor) {
    if (!tensor.given()) return;
    fits(tensor.shape.elements() == count, "a slab's tensors differ in length");
    fits(tensor.contiguous(), "needs contiguous tensors");
  };
  for (const Tensor* tensor : {&slab.weight, &slab.remainder, &slab.gradient}) check(*tensor);
  for (const Tensor* tensor : states) check(*tensor);
}

bool is_accumulator(const Tensor& state, const Tensor& weight) { return state.dtype == accumulator_of(weight); }

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

void check_arguments(const char* operation, const LocalTokens& op) {
  const Fits fits(operation);
  fits(op.tokens.dtype == DType::i32 && op.y.dtype == DType::i32 && op.tokens.shape.elements() == op.y.shape.elements(),
       "tokens and y are not i32 [T]");
  fits(op.first >= 0 && op.count >= 0, "a rank's rows of the vocabulary begin or end below 0");
}

namespace {

// logits, labels and how many columns of the logits count.
template <class Op>
void check_columns(const Fits& fits, const Op& op) {
  const std::int64_t rows = op.logits.rows();
  fits(op.first >= 0 && op.vocabulary >= 0 && (rows == 0 || op.vocabulary <= op.logits.columns()),
       "the vocabulary exceeds the logits' columns");
  fits(op.labels.dtype == DType::i32 && op.labels.shape.elements() == rows, "labels are not i32 [S]");
}

}  // namespace

void check_arguments(const char* operation, const VocabularyStatistics& op) {
  const Fits fits(operation);
  check_columns(fits, op);
  fits(op.statistics.dtype == DType::f64 && op.statistics.shape.elements() == 3 * op.logits.rows() &&
           op.statistics.contiguous(),
       "the statistics are not f64 [S, 3]");
}

void check_arguments(const char* operation, const SplitCrossEntropy& op) {
  const Fits fits(operation);
  check_columns(fits, op);
  const std::int64_t each = 3 * op.logits.rows();
  fits(op.statistics.dtype == DType::f64 && op.statistics.contiguous() &&
           (each == 0 || (op.statistics.shape.elements() >= each && op.statistics.shape.elements() % each == 0)),
       "the statistics are not f64 [ranks, S, 3]");
  fits(op.loss.dtype == accumulator_of(op.logits), "the loss is not acc");
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
  for (const AdamSlab& slab : op.slabs) {
    fits(is_accumulator(slab.m, slab.weight) && is_accumulator(slab.v, slab.weight),
         "m or v are not f32 (f64 for f64 weights)");
    check_slab(fits, slab, {&slab.m, &slab.v});
  }
}

void check_arguments(const char* operation, const Sgd& op) {
  const Fits fits(operation);
  fits.step_values(op.step_values);
  for (const SgdSlab& slab : op.slabs) {
    fits(slab.momentum.given() == (op.momentum != 0), "slabs have momentum where its factor is not 0, and only there");
    fits(!slab.momentum.given() || is_accumulator(slab.momentum, slab.weight),
         "the momentum is not f32 (f64 for f64 weights)");
    check_slab(fits, slab, {&slab.momentum});
  }
}

}  // namespace weft
