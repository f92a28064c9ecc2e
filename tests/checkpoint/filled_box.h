// A box to write whose bytes are all the same.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>

#include "weft/checkpoint/checkpoint_in_progress.h"

namespace weft {

// byte: of numbers that are finite, such as 1 and 0x3c.
inline BoxToWrite filled_box(const std::string& name, DType dtype, const Shape& shape, const Box& box, std::byte byte) {
  return {name, shape, box, dtype,
          [dtype, byte](std::int64_t, std::int64_t count, std::span<std::byte> buffer) -> std::span<const std::byte> {
            const std::span<std::byte> filled = buffer.first(static_cast<std::size_t>(count) * size_of(dtype));
            std::fill(filled.begin(), filled.end(), byte);
            return filled;
          }};
}

}  // namespace weft
