// The letters that stand for bytes in the vocabularies of byte-level tokenizers: printable bytes are themselves, the
// others the letters from U+0100 on.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace weft {

class ByteLetters {
 public:
  ByteLetters();

  // False when a character stands for no byte.
  bool to_bytes(std::string_view letters, std::string& bytes) const;
  std::string to_letters(std::string_view bytes) const;
  std::size_t size(char byte) const { return letters_[static_cast<unsigned char>(byte)] < 0x80 ? 1 : 2; }  // in UTF-8

 private:
  std::array<char32_t, 256> letters_;
  std::array<int, 0x144> bytes_;  // by letter; -1: none
};

}  // namespace weft
