// Text <-> token ids.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::int64_t vocabulary_size() const = 0;  // ids are 0 .. vocabulary_size() - 1
  virtual std::int32_t eod() const = 0;              // end of document
  // UserError when the text cannot be encoded.
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  // Never fails: a model with a padded vocabulary may sample ids without text, which become U+FFFD.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
};

// `type` is Megatron's --tokenizer-type, `vocabulary_size` --vocab-size or 0. UserError for an unknown type.
std::unique_ptr<Tokenizer> make_tokenizer(std::string_view type, std::int64_t vocabulary_size);

}  // namespace weft
