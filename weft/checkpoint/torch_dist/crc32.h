// The checksum of zip archives: CRC-32 with the reflected polynomial 0xEDB88320.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace weft {

// Of `bytes` after those that gave `before` (0: none).
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace weft
