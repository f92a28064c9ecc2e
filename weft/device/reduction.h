// The arithmetic by which ranks add up their numbers: shared by everything that does so in host memory, and the
// reference for everything that does so elsewhere. All agree bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "weft/base/dtype.h"

namespace weft {

enum class Reduction : std::uint8_t { sum, max };
std::string_view name_of(Reduction reduction);

// out[i] = inputs[0][i] + inputs[1][i] + ... from the left (or their maximum). `out` may be one of the inputs.
// bf16 is added up in float and rounded once; other types are added up in their own.
void reduce_in_rank_order(Reduction reduction, DType dtype, std::byte* out, std::span<const std::byte* const> inputs,
                          std::int64_t count);

}  // namespace weft
