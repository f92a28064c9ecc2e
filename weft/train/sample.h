// Continues a prompt with what the model thinks likely.
#pragma once

#include <string>
#include <string_view>

#include "weft/data/tokenizer.h"
#include "weft/train/session.h"

namespace weft {

struct SampleOptions {
  std::int64_t length = 200;  // tokens to add
  double temperature = 0.8;   // 0: always the likeliest
  std::uint64_t seed = 1234;
};
// UTF-8: what is none, U+FFFD stands for. A model of bytes may say any.
std::string readable(std::string_view bytes);

// Tokens of a prompt; of an empty one the end of a document. UserError where the model's vocabulary lacks one of them.
std::vector<std::int32_t> encode_prompt(const Tokenizer& tokenizer, const std::string& prompt, std::int64_t vocabulary);

// The prompt is not part of the result. The model sees the last `length` tokens of its training length.
std::string sample(Session& session, const Tokenizer& tokenizer, const std::string& prompt,
                   const SampleOptions& options);

}  // namespace weft
