#include "weft/device/argument_checks.h"
#include "weft/device/argument_fits.h"

namespace weft {

namespace {

bool is_list(const Tensor& tensor) { return tensor.dtype == DType::i32 && tensor.contiguous(); }

}  // namespace

void check_arguments(const char* operation, const RouteRows& op) {
  const Fits fits(operation);
  for (const Tensor* tensor : {&op.indices, &op.counts, &op.offsets, &op.row_of_slot, &op.slot_of_row})
    fits(is_list(*tensor), "needs contiguous i32 tensors");
  fits(op.offsets.shape.elements() == op.counts.shape.elements() + 1, "offsets are not [E + 1]");
  fits(op.row_of_slot.shape.elements() == op.indices.shape.elements(), "row_of_slot is not [T, k]");
  fits(!op.rows_in_use.given() || op.rows_in_use.dtype == DType::i32, "rows_in_use is not i32");
  fits(op.alignment >= 1, "the alignment is not positive");
}

void check_arguments(const char* operation, const ArrangeRows& op) {
  const Fits fits(operation);
  for (const Tensor* tensor : {&op.source_counts, &op.counts, &op.offsets, &op.received_of_row, &op.row_of_received,
                               &op.rows_in_use, &op.received_in_use})
    fits(tensor->dtype == DType::i32, "needs i32 tensors");
  fits(op.source_counts.shape.dims() == 2 && op.source_counts.contiguous(),
       "source_counts is not contiguous [sources, experts]");
  const std::int64_t experts = op.source_counts.shape[1];
  fits(op.counts.shape.elements() == experts && op.offsets.shape.elements() == experts + 1,
       "counts and offsets do not fit the experts");
  fits(op.alignment >= 1, "the alignment is not positive");
}

void check_arguments(const char* operation, const CopyChoices& op) {
  const Fits fits(operation);
  fits(op.indices.dtype == DType::i32 && op.y.dtype == DType::i32 && op.copies >= 1 && op.each >= 1 &&
           op.y.shape.elements() == op.copies * op.indices.shape.elements(),
       "indices and y are not i32 [T, k] and [T, k copies]");
}

void check_arguments(const char* operation, const GatherRows& op) {
  const Fits fits(operation);
  fits(op.x.dtype == op.y.dtype && (op.x.rows() == 0 || op.y.rows() == 0 || op.x.columns() == op.y.columns()),
       "x and y differ in columns or dtype");
  fits(op.index.dtype == DType::i32 && op.index.shape.elements() >= op.y.rows() && op.divisor >= 1,
       "the index is not i32 [rows]");
  fits(!op.rows_in_use.given() || op.rows_in_use.dtype == DType::i32, "rows_in_use is not i32");
  fits(!op.places.given() || (is_list(op.places) && op.places.shape.elements() == op.x.rows() * op.divisor),
       "the places are not i32 [rows of x, divisor]");
}

void check_arguments(const char* operation, const CountExperts& op) {
  const Fits fits(operation);
  fits(op.k >= 1 && op.sequences >= 1, "k or the number of sequences is not positive");
  const std::int64_t tokens = op.indices.given() ? op.indices.shape.elements() / op.k : op.scores.rows();
  const std::int64_t experts = op.counts.shape.elements() / op.sequences;
  fits(tokens % op.sequences == 0, "tokens do not divide into sequences");
  fits(op.counts.shape.elements() % op.sequences == 0 && op.counts.contiguous(), "counts are not [sequences, E]");
  fits(op.k <= experts, "k is not between 1 and the experts");
  if (op.indices.given())
    fits(is_list(op.indices), "indices are not contiguous i32");
  else
    fits(tokens == 0 || op.scores.columns() == experts, "scores are not [T, E]");
  fits(!op.before.given() || (op.before.dtype == op.counts.dtype && op.before.contiguous() &&
                              op.before.shape.elements() == op.counts.shape.elements()),
       "before is not like counts");
}

void check_arguments(const char* operation, const DropChoices& op) {
  const Fits fits(operation);
  fits(is_list(op.indices) && is_list(op.kept), "needs contiguous i32 indices");
  fits(same_size(op.indices, op.kept) && same_size(op.indices, op.weights) && op.weights.contiguous(),
       "indices, weights and kept are not all [T, k]");
  fits(op.capacity >= 0, "the capacity is negative");
}

void check_arguments(const char* operation, const BalanceLosses& op) {
  const Fits fits(operation);
  fits.alike(op.scores, op.dlogits, "scores and dlogits differ in shape or dtype");
  fits(op.scale.given() && op.scale.dtype == DType::f64, "the scale is not f64");
  fits(op.sequences >= 1 && op.scores.rows() % op.sequences == 0, "tokens do not divide into sequences");
  fits(!op.counts.given() || (op.counts.dtype == DType::f64 && op.counts.contiguous()), "counts are not f64");
  fits(!op.counts.given() || op.scores.rows() == 0 || op.counts.shape.elements() == op.sequences * op.scores.columns(),
       "counts are not [sequences, E]");
  if (op.z_coefficient != 0) fits.alike(op.scores, op.logits, "logits are not like scores");
}

void check_arguments(const char* operation, const UpdateExpertBias& op) {
  const Fits fits(operation);
  fits(op.counts.dtype == DType::f64 && op.counts.shape.elements() == op.bias.shape.elements(),
       "counts are not f64 [E]");
  fits.step_values(op.step_values);
}

}  // namespace weft
