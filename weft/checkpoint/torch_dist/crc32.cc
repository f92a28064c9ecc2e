#include "weft/checkpoint/torch_dist/crc32.h"

#include <array>
#include <cstring>

namespace weft {
namespace {

// tables[k][b]: the checksum of byte b followed by k zero bytes. With sixteen of them, sixteen bytes are taken at a time:
// their lookups do not wait for each other.
constexpr std::size_t width = 16;
using Tables = std::array<std::array<std::uint32_t, 256>, width>;

constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320u : 0u);
    tables[0][b] = crc;
  }
  for (std::size_t k = 1; k < width; ++k) {
    for (std::size_t b = 0; b < 256; ++b) {
      const std::uint32_t last = tables[k - 1][b];
      tables[k][b] = (last >> 8) ^ tables[0][last & 0xff];
    }
  }
  return tables;
}

constexpr Tables tables = make_tables();

}  // namespace

std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before) {
  std::uint32_t crc = ~before;
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= width; at += width, left -= width) {
    std::uint64_t low, high;  // little-endian, as all that Weft runs on
    std::memcpy(&low, at, 8);
    std::memcpy(&high, at + 8, 8);
    low ^= crc;
    crc = 0;
#pragma GCC unroll 8
    for (std::size_t i = 0; i < 8; ++i) {
      crc ^= tables[width - 1 - i][(low >> (8 * i)) & 0xff] ^ tables[width / 2 - 1 - i][(high >> (8 * i)) & 0xff];
    }
  }
  for (; left > 0; ++at, --left) crc = (crc >> 8) ^ tables[0][(crc ^ static_cast<std::uint8_t>(*at)) & 0xff];
  return ~crc;
}

}  // namespace weft
