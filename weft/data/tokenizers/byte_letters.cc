#include "weft/data/tokenizers/byte_letters.h"

#include "weft/data/tokenizers/utf8.h"

namespace weft {

ByteLetters::ByteLetters() {
  bytes_.fill(-1);
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
    letters_[byte] = printable ? byte : next++;
    bytes_[letters_[byte]] = static_cast<int>(byte);
  }
}

bool ByteLetters::to_bytes(std::string_view letters, std::string& bytes) const {
  bytes.clear();
  for (std::size_t at = 0; at < letters.size();) {
    const char32_t letter = next_character(letters, at);
    if (letter >= bytes_.size() || bytes_[letter] < 0) return false;
    bytes += static_cast<char>(static_cast<unsigned char>(bytes_[letter]));
  }
  return true;
}

std::string ByteLetters::to_letters(std::string_view bytes) const {
  std::string letters;
  for (char byte : bytes) append_character(letters, letters_[static_cast<unsigned char>(byte)]);
  return letters;
}

}  // namespace weft
