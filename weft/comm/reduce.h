// The arithmetic of reductions, shared by the communicators of a CPU so that they agree bit for bit.
#pragma once

#include <cstdint>
#include <span>

#include "weft/comm/communicator.h"

namespace weft {

// out[i] = inputs[0][i] + inputs[1][i] + ... from the left (or their maximum). `out` may be one of the inputs.
// bf16 is added up in float and rounded once; other types are added up in their own.
void reduce_in_rank_order(Reduction reduction, DType dtype, std::byte* out, std::span<const std::byte* const> inputs,
                          std::int64_t count);

}  // namespace weft
