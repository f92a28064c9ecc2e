#include "weft/data/tokenizers/decoder.h"

#include "weft/base/text.h"
#include "weft/data/tokenizers/utf8.h"

namespace weft {

namespace {

struct Apply {
  const ByteLetters& letters;
  std::vector<std::string>& tokens;
  RegexScratch scratch;

  void operator()(const JoinBytesStep&) {
    std::string all, bytes;
    for (const std::string& token : tokens) all += letters.to_bytes(token, bytes) ? bytes : token;
    tokens.assign(1, with_replacements(all));
  }
  void operator()(const ByteTokensStep&) {
    std::vector<std::string> result;
    std::string bytes;
    const auto end_run = [&] {
      if (first_invalid_utf8(bytes) == std::string::npos) {
        if (!bytes.empty()) result.push_back(bytes);
      } else {
        result.insert(result.end(), bytes.size(), std::string(replacement_character));
      }
      bytes.clear();
    };
    for (std::string& token : tokens) {
      const int byte = byte_of_token(token);
      if (byte >= 0) {
        bytes += static_cast<char>(byte);
      } else {
        end_run();
        result.push_back(std::move(token));
      }
    }
    end_run();
    tokens = std::move(result);
  }
  void operator()(const JoinStep&) { tokens.assign(1, join(tokens, "")); }
  void operator()(const StripTokenStep& strip) {
    const std::string text = text_of_character(strip.character);
    for (std::string& token : tokens) {
      std::string_view rest = token;
      for (std::int64_t i = 0; i < strip.left && rest.starts_with(text); ++i) rest.remove_prefix(text.size());
      for (std::int64_t i = 0; i < strip.right && rest.ends_with(text); ++i) rest.remove_suffix(text.size());
      token = std::string(rest);
    }
  }
  void operator()(const UnmetaspaceStep& step) {
    const std::string symbol = text_of_character(step.symbol);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::string text;
      for (std::size_t at = 0; at < tokens[i].size();) {
        const std::size_t size = character_size(tokens[i][at]);
        const std::string_view character = std::string_view(tokens[i]).substr(at, size);
        at += size;
        if (character != symbol) {
          text += character;
        } else if (i > 0 || !step.drop_first) {
          text += ' ';
        }
      }
      tokens[i] = std::move(text);
    }
  }
  void operator()(const ReplaceMatches& replace) {
    for (std::string& token : tokens) token = replace_matches(replace, token, scratch);
  }
};

}  // namespace

int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
  int value = 0;
  for (char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = 16 * value + digit;
  }
  return value;
}

std::string Decoder::decode(std::vector<std::string> tokens) const {
  if (steps_.empty()) return join(tokens, " ");
  const auto size = [&] {
    std::size_t bytes = 0;
    for (const std::string& token : tokens) bytes += token.size();
    return bytes;
  };
  const std::size_t original = size();
  Apply apply{letters_, tokens, {}};
  for (const DecoderStep& step : steps_) {
    std::visit(apply, step);
    require_bounded(size(), original);
  }
  return join(tokens, "");
}

}  // namespace weft
