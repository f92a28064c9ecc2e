// Whether boxes tile a tensor: no hole, no overlap.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "weft/base/shape.h"
#include "weft/model/boxes.h"

namespace weft {

// UserError that begins with `where` unless they do. Every box lies within the shape, which has less than 2^63 elements.
// `noun` is the word for them in messages: "chunks". Takes n log n steps for boxes that come from cutting along dims.
void check_tiling(const Shape& shape, std::vector<const Box*> boxes, const std::string& where, std::string_view noun);

}  // namespace weft
