// The first messages on a connection: which rank connects to which, and whether it is accepted.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <string>

namespace weft {

static_assert(std::endian::native == std::endian::little, "numbers are sent as they are stored in memory");

inline constexpr std::uint64_t handshake_magic = 0x7063'7420'7466'6577;  // "weft tcp"
inline constexpr std::uint32_t protocol_version = 1;  // raised when this handshake or the frames change

template <std::size_t N>
std::array<char, N> fixed_text(const std::string& text) {  // truncated to fit, zero-terminated
  std::array<char, N> fixed{};
  text.copy(fixed.data(), N - 1);
  return fixed;
}

struct Hello {
  std::uint64_t magic = handshake_magic;
  std::uint32_t version = protocol_version;
  std::int32_t size = 0;  // of the world
  std::int32_t rank = 0;  // that connects
  std::int32_t to = 0;    // that it connects to
  std::int32_t port = 0;  // where it listens
  std::array<char, 64> host{};
  std::array<char, 64> run{};
};

struct HelloReply {
  std::uint64_t magic = handshake_magic;
  std::int64_t accepted = 0;
  std::array<char, 240> why{};  // if it is not
};

// What rank 0 sends when all have connected, followed by a text of `bytes` bytes.
struct Announcement {
  enum Kind : std::uint32_t { list = 1, failure = 2 };
  std::uint32_t kind = list;
  std::uint32_t bytes = 0;
};

}  // namespace weft
