#include "weft/data/byte_tokenizer.h"

namespace weft {

namespace {

class ByteEncoder final : public Encoder {
 public:
  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    ids.reserve(ids.size() + text.size());
    for (unsigned char byte : text) ids.push_back(byte);
  }
};

}  // namespace

std::unique_ptr<Encoder> ByteTokenizer::encoder() const { return std::make_unique<ByteEncoder>(); }

std::string ByteTokenizer::decode(std::span<const std::int32_t> ids, SpecialTokens /*special*/) const {
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
