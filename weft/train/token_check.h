// How a micro-batch comes to where a step reads it: compiled to run on vectors, since the GPU waits for it.
#pragma once

#include <cstdint>
#include <span>

#include "weft/data/token_source.h"

namespace weft {

// Copies tokens and labels, looks at each on the way, and returns how many labels are counted (are not negative).
// UserError naming a token that is not below `vocabulary`, or a negative one; the copy is not to be used then.
std::int64_t copy_checked(const MicroBatch& batch, std::int64_t vocabulary, std::span<std::int32_t> tokens,
                          std::span<std::int32_t> labels);

// Those at one position of every sequence.
std::int64_t counted_labels_at(const MicroBatch& batch, std::int64_t position);

}  // namespace weft
