// UTF-8: characters of text that is known to be valid, and what to do with text that is not.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace weft {

inline constexpr std::string_view replacement_character = "\xef\xbf\xbd";  // U+FFFD

// Bytes of the character that begins with this byte of valid text.
inline std::size_t character_size(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

// The character of valid text at `at`, which moves past it.
inline char32_t next_character(std::string_view text, std::size_t& at) {
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[at + i])); };
  const char32_t first = byte(0);
  if (first < 0x80) return ++at, first;
  char32_t c = 0;
  if (first < 0xe0) {
    c = (first & 0x1f) << 6 | (byte(1) & 0x3f);
    at += 2;
  } else if (first < 0xf0) {
    c = (first & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    at += 3;
  } else {
    c = (first & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
    at += 4;
  }
  return c;
}

void append_character(std::string& text, char32_t c);
std::string text_of_character(char32_t c);
std::u32string characters_of(std::string_view text);

// Where the first byte is that belongs to no valid character; npos: the text is UTF-8.
std::size_t first_invalid_utf8(std::string_view text);
// The text with U+FFFD for each longest part of it that begins a character and does not end it, as other programs have it.
std::string with_replacements(std::string_view bytes);

}  // namespace weft
