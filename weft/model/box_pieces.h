// A large box in pieces, for whoever has memory for some MiB of it.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/model/boxes.h"

namespace weft {

// Boxes of at most `most` elements. One after another they are the elements of the box in its order, row-major.
std::vector<Box> pieces_of(const Box& box, std::int64_t most);

}  // namespace weft
