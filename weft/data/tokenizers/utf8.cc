#include "weft/data/tokenizers/utf8.h"

#include <cstdint>
#include <cstring>

namespace weft {

namespace {

// Of the bytes at `at`: how many make a valid character (valid = true), or else how many begin one, at least 1.
std::size_t scan_character(std::string_view text, std::size_t at, bool& valid) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char first = byte(0);
  valid = first < 0x80;
  if (valid || first < 0xc2 || first > 0xf4) return 1;
  const std::size_t size = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  // The second byte rules out what is too long, half of a surrogate pair, or beyond the last character.
  const unsigned char low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned char high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  for (std::size_t i = 1; i < size; ++i) {
    if (at + i == text.size()) return i;
    const unsigned char next = byte(i);
    if (next < (i == 1 ? low : 0x80) || next > (i == 1 ? high : 0xbf)) return i;
  }
  valid = true;
  return size;
}

}  // namespace

void append_character(std::string& text, char32_t c) {
  const auto put = [&](char32_t byte) { text += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | c >> 6);
    put(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3f));
    put(0x80 | (c & 0x3f));
  } else {
    put(0xf0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3f));
    put(0x80 | (c >> 6 & 0x3f));
    put(0x80 | (c & 0x3f));
  }
}

std::string text_of_character(char32_t c) {
  std::string text;
  append_character(text, c);
  return text;
}

std::u32string characters_of(std::string_view text) {
  std::u32string characters;
  for (std::size_t at = 0; at < text.size();) characters += next_character(text, at);
  return characters;
}

std::size_t first_invalid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    std::uint64_t eight = 0;
    if (at + 8 <= text.size()) {
      std::memcpy(&eight, text.data() + at, 8);
      if ((eight & 0x8080808080808080u) == 0) {
        at += 8;
        continue;
      }
    }
    bool valid = false;
    const std::size_t size = scan_character(text, at, valid);
    if (!valid) return at;
    at += size;
  }
  return std::string_view::npos;
}

std::string with_replacements(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (std::size_t at = 0; at < bytes.size();) {
    bool valid = false;
    const std::size_t size = scan_character(bytes, at, valid);
    text += valid ? bytes.substr(at, size) : replacement_character;
    at += size;
  }
  return text;
}

}  // namespace weft
