#include "weft/train/sample.h"

#include <algorithm>
#include <cmath>

#include "weft/base/error.h"
#include "weft/base/random.h"

namespace weft {

namespace {

// Draws from softmax(logits / temperature); `chance` in (0, 1).
std::int32_t draw(std::span<const double> logits, double temperature, double chance) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (temperature <= 0) return static_cast<std::int32_t>(best - logits.begin());
  double sum = 0;
  for (double logit : logits) sum += std::exp((logit - *best) / temperature);
  double left = chance * sum;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    left -= std::exp((logits[i] - *best) / temperature);
    if (left <= 0) return static_cast<std::int32_t>(i);
  }
  return static_cast<std::int32_t>(best - logits.begin());
}

}  // namespace

std::string readable(std::string_view bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes.size();) {
    const auto first = static_cast<unsigned char>(bytes[i]);
    const std::size_t size = first < 0x80                    ? 1
                             : first >= 0xc2 && first < 0xe0 ? 2
                             : first >= 0xe0 && first < 0xf0 ? 3
                             : first >= 0xf0 && first < 0xf5 ? 4
                                                             : 0;
    bool whole = size > 0 && i + size <= bytes.size();
    for (std::size_t j = 1; whole && j < size; ++j) whole = (static_cast<unsigned char>(bytes[i + j]) & 0xc0) == 0x80;
    if (whole && size > 2) {  // overlong, half of a surrogate pair, or beyond the last character
      const auto second = static_cast<unsigned char>(bytes[i + 1]);
      whole = !(first == 0xe0 && second < 0xa0) && !(first == 0xed && second >= 0xa0) &&
              !(first == 0xf0 && second < 0x90) && !(first == 0xf4 && second >= 0x90);
    }
    text += whole ? bytes.substr(i, size) : std::string_view("\xef\xbf\xbd");
    i += whole ? size : 1;
  }
  return text;
}

std::vector<std::int32_t> encode_prompt(const Tokenizer& tokenizer, const std::string& prompt,
                                        std::int64_t vocabulary) {
  std::vector<std::int32_t> tokens;
  try {
    tokens = tokenizer.encode(prompt);
  } catch (const UserError& error) {
    throw UserError("--sample '{}': {}", prompt, error.what());
  }
  if (tokens.empty() && tokenizer.eod() < 0)
    throw UserError("--sample '{}': the tokenizer names no token to begin with; give a prompt", prompt);
  if (tokens.empty()) tokens.push_back(tokenizer.eod());
  for (std::int32_t token : tokens)
    if (token >= vocabulary)
      throw UserError(
          "--sample '{}': its token {} is outside the model's vocabulary of {}; --tokenizer-type NullTokenizer takes "
          "a prompt of token ids",
          prompt, token, vocabulary);
  return tokens;
}

std::string sample(Session& session, const Tokenizer& tokenizer, const std::string& prompt,
                   const SampleOptions& options) {
  std::vector<std::int32_t> tokens = encode_prompt(tokenizer, prompt, session.options().config.vocabulary);
  const std::size_t begin = tokens.size();
  const std::uint64_t key = random_key(options.seed, "sample");
  const auto window = static_cast<std::size_t>(session.options().length);
  const auto rows = static_cast<std::size_t>(session.options().config.embedding_rows());
  const auto words =
      static_cast<std::size_t>(std::min(session.options().config.vocabulary, tokenizer.vocabulary_size()));
  for (std::int64_t i = 0; i < options.length; ++i) {
    const std::size_t seen = std::min(tokens.size(), window);
    const std::vector<double> logits = session.evaluator().logits(std::span(tokens).last(seen));
    const auto last = std::span(logits).subspan((seen - 1) * rows, words);
    const std::int32_t next = draw(last, options.temperature, random_uniform(key, static_cast<std::uint64_t>(i)));
    if (next == tokenizer.eod()) break;
    tokens.push_back(next);
  }
  return readable(tokenizer.decode(std::span(tokens).subspan(begin)));
}

}  // namespace weft
