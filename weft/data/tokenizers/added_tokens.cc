#include "weft/data/tokenizers/added_tokens.h"

#include <algorithm>

#include "weft/data/tokenizers/utf8.h"

namespace weft {

namespace {

ByteTrie trie_of(const std::vector<AddedToken>& tokens) {
  std::vector<ByteTrie::Entry> entries;
  for (std::size_t i = 0; i < tokens.size(); ++i) entries.push_back({tokens[i].text, static_cast<std::int32_t>(i)});
  return ByteTrie(std::move(entries));
}

std::size_t before(std::string_view text, std::size_t at) {
  do --at;
  while ((static_cast<unsigned char>(text[at]) & 0xc0) == 0x80);
  return at;
}

}  // namespace

bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
         c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), trie_(trie_of(tokens_)) {
  if (std::any_of(tokens_.begin(), tokens_.end(), [](const AddedToken& token) { return token.single_word; }))
    word_.emplace("\\A[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]", RegexDialect::fancy, "added tokens");
}

bool AddedTokens::stands_alone(std::string_view text, std::size_t begin, std::size_t end, RegexScratch& scratch) const {
  Regex::Match match;
  if (begin > 0) {
    const std::size_t last = before(text, begin);
    if (word_->search(text.substr(last, begin - last), 0, scratch, match)) return false;
  }
  return end == text.size() || !word_->search(text.substr(end, character_size(text[end])), 0, scratch, match);
}

bool AddedTokens::next(std::string_view text, std::size_t& at, std::size_t begin, RegexScratch& scratch,
                       Place& place) const {
  for (; at < text.size(); ++at) {
    if (!trie_.may_begin_with(text[at])) continue;
    const ByteTrie::Found found = trie_.longest(text, at);
    if (found.size == 0) continue;
    const AddedToken& token = tokens_[static_cast<std::size_t>(found.value)];
    place = {at, at + found.size, token.id};
    at = place.end;
    if (token.single_word && !stands_alone(text, place.begin, place.end, scratch)) {
      --at;  // the loop's step
      continue;
    }
    if (token.strip_left) {
      std::size_t first = place.begin;
      while (first > 0) {
        std::size_t last = before(text, first), end = last;
        if (!is_space(next_character(text, end))) break;
        first = last;
      }
      place.begin = std::max(first, begin);
    }
    if (token.strip_right) {
      for (std::size_t end = place.end; end < text.size(); place.end = end)
        if (!is_space(next_character(text, end))) break;
    }
    return true;
  }
  return false;
}

}  // namespace weft
