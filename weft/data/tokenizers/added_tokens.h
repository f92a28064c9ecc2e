// Tokens that are found in a text as they are, before anything else happens to it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/data/tokenizers/byte_trie.h"
#include "weft/data/tokenizers/regex.h"

namespace weft {

struct AddedToken {
  std::string text;
  std::int32_t id = 0;
  bool single_word = false;                      // only where no word's character stands beside it
  bool strip_left = false, strip_right = false;  // white space beside it belongs to it
};

// White_Space of Unicode.
bool is_space(char32_t c);

class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);

  bool empty() const { return trie_.empty(); }
  // Gives the parts of a text in their order: between(part) for what is no token, token(id) for each that is found, the
  // leftmost first and there the longest.
  template <class Between, class Token>
  void split(std::string_view text, RegexScratch& scratch, Between&& between, Token&& token) const {
    std::size_t begin = 0, at = 0;
    Place place;
    while (next(text, at, begin, scratch, place)) {
      if (begin < place.begin) between(text.substr(begin, place.begin - begin));
      token(place.id);
      begin = place.end;
    }
    if (begin < text.size()) between(text.substr(begin));
  }

 private:
  struct Place {
    std::size_t begin, end;
    std::int32_t id;
  };
  // The next token whose own text begins at `at` or after it, which moves past that text. What is before `begin` is used.
  bool next(std::string_view text, std::size_t& at, std::size_t begin, RegexScratch& scratch, Place& place) const;
  bool stands_alone(std::string_view text, std::size_t begin, std::size_t end, RegexScratch& scratch) const;

  std::vector<AddedToken> tokens_;
  ByteTrie trie_;
  std::optional<Regex> word_;  // a word's character at the beginning; if a token asks
};

}  // namespace weft
