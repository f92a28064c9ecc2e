#include "weft/data/tokenizers/normalizer.h"

#include "weft/base/error.h"
#include "weft/data/tokenizers/added_tokens.h"
#include "weft/data/tokenizers/unicode_data.h"
#include "weft/data/tokenizers/utf8.h"

namespace weft {

namespace {

std::string stripped(const StripSpaces& strip, std::string_view text) {
  if (strip.left) {
    for (std::size_t at = 0; !text.empty(); at = 0) {
      if (!is_space(next_character(text, at))) break;
      text.remove_prefix(at);
    }
  }
  if (strip.right) {
    std::size_t end = 0;  // after the last character that is no space
    for (std::size_t at = 0; at < text.size();)
      if (!is_space(next_character(text, at))) end = at;
    text = text.substr(0, end);
  }
  return std::string(text);
}

struct Apply {
  std::string text;
  RegexScratch& scratch;
  bool& at_beginning;

  void operator()(const std::shared_ptr<const NormalForm>& form) { text = form->apply(text); }
  void operator()(const std::shared_ptr<const Lowercase>& lowercase) { text = lowercase->apply(text); }
  void operator()(const StripSpaces& strip) {
    std::string result = stripped(strip, text);
    if (strip.left && !text.empty()) {
      std::size_t at = 0;
      if (is_space(next_character(text, at))) at_beginning = false;
    }
    text = std::move(result);
  }
  void operator()(const ReplaceMatches& replace) {
    Regex::Match match;
    if (replace.by.empty() && replace.pattern.search(text, 0, scratch, match) && match.begin == 0 && match.end > 0)
      at_beginning = false;
    text = replace_matches(replace, text, scratch);
  }
  void operator()(const PrependText& prepend) {
    if (!text.empty()) text.insert(0, prepend.text);
  }
};

}  // namespace

Lowercase::Lowercase() : lower_(lower_data()) {}

std::string Lowercase::apply(std::string_view text) const {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text, at);
    if (c < 0x80) {
      result += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
      continue;
    }
    const std::u32string_view lower = lower_.find(c);
    if (lower.empty()) append_character(result, c);
    for (char32_t part : lower) append_character(result, part);
  }
  return result;
}

std::string replace_matches(const ReplaceMatches& replace, std::string_view text, RegexScratch& scratch) {
  std::string result;
  std::size_t copied = 0;
  Regex::Match match;
  for (std::size_t at = 0; at <= text.size() && replace.pattern.search(text, at, scratch, match);) {
    result += text.substr(copied, match.begin - copied);
    result += replace.by;
    copied = match.end;
    at = match.end;
    if (match.begin == match.end)  // go on after the next character
      at = match.end < text.size() ? match.end + character_size(text[match.end]) : text.size() + 1;
  }
  result += text.substr(copied);
  return result;
}

void require_bounded(std::size_t bytes, std::size_t original) {
  constexpr std::size_t times = 200, fixed = std::size_t{1} << 20;
  if (bytes > times * original + fixed)
    throw UserError("the tokenizer makes {} bytes of a text of {}; its steps of replacement are wrong", bytes,
                    original);
}

std::string Normalizer::apply(std::string text, RegexScratch& scratch, bool& at_beginning) const {
  const std::size_t original = text.size();
  Apply apply{std::move(text), scratch, at_beginning};
  for (const NormalizerStep& step : steps_) {
    std::visit(apply, step);
    require_bounded(apply.text.size(), original);
  }
  return std::move(apply.text);
}

}  // namespace weft
