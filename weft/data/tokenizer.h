// Text <-> token ids.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// One thread's way into a tokenizer: it remembers words that it has met. The tokenizer outlives it.
class Encoder {
 public:
  virtual ~Encoder() = default;
  // Appends the ids of a whole document. UserError when the text cannot be encoded; then `ids` may hold a part of them.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids) = 0;
};

enum class SpecialTokens : std::uint8_t { keep, skip };

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::int64_t vocabulary_size() const = 0;  // ids are 0 .. vocabulary_size() - 1
  virtual std::int32_t eod() const = 0;              // end of document; -1: there is none
  virtual std::unique_ptr<Encoder> encoder() const = 0;
  // One text with an encoder of its own.
  std::vector<std::int32_t> encode(std::string_view text) const;
  // Any ids: a model with a padded vocabulary may sample some without text, which become U+FFFD. (UserError only for a file
  // whose steps make ever more of a text.) `skip` leaves out what
  // the tokenizer calls special, if it calls any so.
  virtual std::string decode(std::span<const std::int32_t> ids, SpecialTokens special = SpecialTokens::keep) const = 0;
  // What stands before and after a text where special tokens are asked for.
  virtual std::vector<std::int32_t> special_before() const { return {}; }
  virtual std::vector<std::int32_t> special_after() const { return {}; }
};

}  // namespace weft
