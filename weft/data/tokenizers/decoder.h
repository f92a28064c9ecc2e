// Tokens back to text: a list of steps over the texts of tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "weft/data/tokenizers/byte_letters.h"
#include "weft/data/tokenizers/normalizer.h"

namespace weft {

struct JoinBytesStep {};   // letters that stand for bytes become the bytes, and all tokens one text
struct ByteTokensStep {};  // runs of <0x00> ... become characters
struct JoinStep {};        // all tokens become one text
struct StripTokenStep {    // at most so many of a character from the ends of each token
  char32_t character = U' ';
  std::int64_t left = 0, right = 0;
};
struct UnmetaspaceStep {  // a symbol becomes a space; at the beginning of the first token perhaps nothing
  char32_t symbol = U'\u2581';
  bool drop_first = true;
};
using DecoderStep =
    std::variant<JoinBytesStep, ByteTokensStep, JoinStep, StripTokenStep, UnmetaspaceStep, ReplaceMatches>;

class Decoder {
 public:
  Decoder() = default;
  explicit Decoder(std::vector<DecoderStep> steps) : steps_(std::move(steps)) {}
  // Tokens stand one after another if there are steps, else with spaces between them. The text is UTF-8.
  std::string decode(std::vector<std::string> tokens) const;
  bool only_joins_bytes() const { return steps_.size() == 1 && std::holds_alternative<JoinBytesStep>(steps_[0]); }

 private:
  std::vector<DecoderStep> steps_;
  ByteLetters letters_;
};

// The byte that a token such as <0x0A> stands for; -1: none.
int byte_of_token(std::string_view token);

}  // namespace weft
