#include "weft/data/byte_tokenizer.h"

namespace weft {

std::vector<std::int32_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size());
  for (unsigned char byte : text) ids.push_back(byte);
  return ids;
}

std::string ByteTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  text.reserve(ids.size());
  for (std::int32_t id : ids) {
    if (id >= 0 && id < 256) {
      text += static_cast<char>(id);
    } else if (id != eod()) {
      text += "\xef\xbf\xbd";  // U+FFFD
    }
  }
  return text;
}

}  // namespace weft
