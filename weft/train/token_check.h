// Copies a micro-batch to where a step reads it. Compiled to be vectorised, since the GPU waits for it.
#pragma once

#include <cstdint>
#include <span>

#include "weft/data/token_source.h"

namespace weft {

// Copies tokens and labels, checks each, and returns how many labels count (are not negative). UserError naming the token
// if one is negative or not below `vocabulary`; do not use the copy then.
std::int64_t copy_checked(const MicroBatch& batch, std::int64_t vocabulary, std::span<std::int32_t> tokens,
                          std::span<std::int32_t> labels);

// The same check alone.
void check_tokens(const MicroBatch& batch, std::int64_t vocabulary);

// The number of labels that count in these micro-batches.
std::int64_t counted_labels(std::span<const MicroBatch> batches);

// The number of labels that count among the first `positions` of every document, as far as documents are told apart, or
// of every sample.
std::int64_t counted_labels_before(const MicroBatch& batch, std::int64_t positions);

}  // namespace weft
