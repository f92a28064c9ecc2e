// What the host looks at in a micro-batch before each step: compiled to run on vectors, since the GPU waits for it.
#pragma once

#include <cstdint>

#include "weft/data/token_source.h"

namespace weft {

// UserError naming a token that is not below `vocabulary`, or a negative one (as a label it is not counted).
void require_in_vocabulary(const MicroBatch& batch, std::int64_t vocabulary);

std::int64_t counted_labels(const MicroBatch& batch);

}  // namespace weft
