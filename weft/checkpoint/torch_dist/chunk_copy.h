// Copies the elements that a chunk and a wanted box of a tensor share.
#pragma once

#include <cstddef>
#include <optional>

#include "weft/checkpoint/torch_dist/torch_item.h"
#include "weft/checkpoint/torch_dist/zip_archive.h"
#include "weft/model/boxes.h"

namespace weft {

// What two boxes of one tensor share; absent: nothing.
std::optional<Box> intersection(const Box& a, const Box& b);

// `out` is the wanted box, row-major, in bytes of the tensor's type; `saved` holds the chunk's elements. With
// Pages::give_back at most some MiB of the mapped file stay in memory on the way.
void copy_shared(const SavedTensor& saved, const Box& chunk, const Box& wanted, std::byte* out, Pages pages);

}  // namespace weft
