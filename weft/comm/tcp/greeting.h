// The first words on a connection: who calls whom, and whether it is welcome.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <string>

namespace weft {

static_assert(std::endian::native == std::endian::little, "numbers go over the wire as they lie in memory");

inline constexpr std::uint64_t greeting_magic = 0x7063'7420'7466'6577;  // "weft tcp"
inline constexpr std::uint32_t protocol_version = 1;                    // to be raised when greetings or frames change

template <std::size_t N>
std::array<char, N> fixed_text(const std::string& text) {  // cut to fit, with its end
  std::array<char, N> fixed{};
  text.copy(fixed.data(), N - 1);
  return fixed;
}

struct Greeting {
  std::uint64_t magic = greeting_magic;
  std::uint32_t version = protocol_version;
  std::int32_t size = 0;  // of the world
  std::int32_t rank = 0;  // who calls
  std::int32_t to = 0;    // whom
  std::int32_t port = 0;  // where the caller listens
  std::array<char, 64> host{};
  std::array<char, 64> run{};
};

struct Answer {
  std::uint64_t magic = greeting_magic;
  std::int64_t welcome = 0;
  std::array<char, 240> why{};  // it is not
};

// What rank 0 sends when all have come: a text of so many bytes.
struct Letter {
  enum Kind : std::uint32_t { list = 1, failure = 2 };
  std::uint32_t kind = list;
  std::uint32_t bytes = 0;
};

}  // namespace weft
