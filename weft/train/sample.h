// Continues a prompt with tokens that the model finds likely.
#pragma once

#include <string>
#include <string_view>

#include "weft/data/tokenizer.h"
#include "weft/train/session.h"

namespace weft {

struct SampleOptions {
  std::int64_t length = 200;  // tokens to add
  double temperature = 0.8;   // 0: always the likeliest token
  std::uint64_t seed = 1234;
};
// Replaces bytes that are not UTF-8 by U+FFFD. A model of bytes may produce any.
std::string readable(std::string_view bytes);

// The tokens of a prompt; an empty one becomes an end of document. UserError if the model's vocabulary lacks one.
std::vector<std::int32_t> encode_prompt(const Tokenizer& tokenizer, const std::string& prompt, std::int64_t vocabulary);

// The result does not include the prompt. The model sees at most as many of the last tokens as it is trained on.
std::string sample(Session& session, const Tokenizer& tokenizer, const std::string& prompt,
                   const SampleOptions& options);

}  // namespace weft
