// Tables of rotary position embedding.
#pragma once

#include "weft/model/builder.h"

namespace weft {

// Cosine and sine of every position's angles, [length, width / 2], by the formulas of docs/numerics.md.
struct RotaryTables {
  ValueId cosine, sine;
  ValueId positions;       // of tokens; invalid: from the beginning of their sample
  std::int64_t width = 0;  // elements of a head that are rotated
};
RotaryTables add_rotary_tables(ModuleBuilder& b, const RopeSpec& rope, std::int64_t head_dim);

}  // namespace weft
