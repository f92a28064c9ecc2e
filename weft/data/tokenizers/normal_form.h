// Unicode's normal forms and lower case (Unicode 14).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace weft {

// Character -> characters, as flat arrays.
class CharacterMap {
 public:
  explicit CharacterMap(std::string_view packed);

  // Empty: the character is not in the map.
  std::u32string_view find(char32_t c) const;
  const std::vector<char32_t>& keys() const { return keys_; }

 private:
  std::vector<char32_t> keys_;        // ascending
  std::vector<std::uint32_t> begin_;  // of a key's characters; one more at the end
  std::u32string characters_;
};

enum class Form : std::uint8_t { nfc, nfd, nfkc, nfkd };

class NormalForm {
 public:
  explicit NormalForm(Form form);

  // `text` is valid UTF-8. Parts that are in the form already are copied.
  std::string apply(std::string_view text) const;

 private:
  bool composes() const { return form_ == Form::nfc || form_ == Form::nfkc; }
  bool compatible() const { return form_ == Form::nfkc || form_ == Form::nfkd; }
  bool may_change(char32_t c) const { return c < changes_.size() && changes_[c]; }
  std::uint8_t class_of(char32_t c) const;
  void decompose(char32_t c, std::u32string& into) const;
  char32_t composed(char32_t first, char32_t second) const;  // 0: they do not compose
  void normalise(std::u32string_view part, std::string& into) const;
  void mark_changes();

  Form form_;
  CharacterMap canonical_, compatible_, classes_;
  std::unordered_map<std::uint64_t, char32_t> compositions_;
  std::vector<bool> changes_;  // by character: not in the form by itself, or changed by what stands before it
};

}  // namespace weft
