// Text that already consists of ids: whole numbers separated by white space. A tokenizer of N ids has N + 1, the last
// being the end of a document, as in Megatron.
#pragma once

#include "weft/data/tokenizer.h"

namespace weft {

class NullTokenizer final : public Tokenizer {
 public:
  explicit NullTokenizer(std::int64_t ids);  // UserError if below 1

  std::int64_t vocabulary_size() const override { return ids_ + 1; }
  std::int32_t eod() const override { return static_cast<std::int32_t>(ids_); }
  // UserError for a word that is not a number, or a number that is not an id.
  std::unique_ptr<Encoder> encoder() const override;
  std::string decode(std::span<const std::int32_t> ids, SpecialTokens special = SpecialTokens::keep) const override;

 private:
  std::int64_t ids_;
};

}  // namespace weft
