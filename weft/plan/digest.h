// One number for a plan, by which ranks compare theirs.
#pragma once

#include <cstdint>

#include "weft/plan/plan.h"

namespace weft {

// Equal for plans that do the same: nodes, uses, collectives, sizes and names.
std::uint64_t digest_of(const Plan& plan);

}  // namespace weft
