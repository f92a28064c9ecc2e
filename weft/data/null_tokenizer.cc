#include "weft/data/null_tokenizer.h"

#include <limits>

#include "weft/base/error.h"
#include "weft/base/text.h"

namespace weft {

NullTokenizer::NullTokenizer(std::int64_t ids) : ids_(ids) {
  if (ids < 1 || ids >= std::numeric_limits<std::int32_t>::max()) {
    throw UserError("NullTokenizer needs the number of its ids: --vocab-size N, at least 1 (got {})", ids);
  }
}

namespace {

class NullEncoder final : public Encoder {
 public:
  explicit NullEncoder(std::int64_t ids) : ids_(ids) {}

  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    constexpr std::string_view blank = " \t\r\n";
    for (std::size_t at = text.find_first_not_of(blank); at != std::string_view::npos;) {
      const std::size_t end = std::min(text.find_first_of(blank, at), text.size());
      const std::string_view word = text.substr(at, end - at);
      std::int64_t id = 0;
      if (!parse_int(word, id)) {
        throw UserError("NullTokenizer reads whole numbers separated by blanks; \"{}\" at byte {} is not one",
                        word.substr(0, 40), at);
      }
      if (id < 0 || id > ids_) {
        throw UserError(
            "token {} at byte {} is outside the vocabulary of {} ids (--vocab-size {} and the end of document)", id, at,
            ids_ + 1, ids_);
      }
      ids.push_back(static_cast<std::int32_t>(id));
      at = text.find_first_not_of(blank, end);
    }
  }

 private:
  std::int64_t ids_;
};

}  // namespace

std::unique_ptr<Encoder> NullTokenizer::encoder() const { return std::make_unique<NullEncoder>(ids_); }

std::string NullTokenizer::decode(std::span<const std::int32_t> ids, SpecialTokens /*special*/) const {
  std::string text;
  for (std::int32_t id : ids) {
    if (!text.empty()) text += ' ';
    text += std::to_string(id);
  }
  return text;
}

}  // namespace weft
