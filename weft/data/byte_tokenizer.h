// One id per byte: 0 to 255 are the bytes, 256 is the end of a document. Any text has exactly one encoding.
#pragma once

#include "weft/data/tokenizer.h"

namespace weft {

class ByteTokenizer final : public Tokenizer {
 public:
  std::int64_t vocabulary_size() const override { return 257; }
  std::int32_t eod() const override { return 256; }
  std::unique_ptr<Encoder> encoder() const override;
  std::string decode(std::span<const std::int32_t> ids, SpecialTokens special = SpecialTokens::keep)
      const override;  // the end of a document becomes no text
};

}  // namespace weft
