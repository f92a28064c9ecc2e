#include "weft/data/tokenizers/normal_form.h"

#include <algorithm>

#include "weft/data/tokenizers/unicode_data.h"
#include "weft/data/tokenizers/utf8.h"

namespace weft {

namespace {

// Syllables of Hangul are computed: first x middle x last consonant, the last of which may be missing.
constexpr char32_t syllables = 0xac00, firsts = 0x1100, middles = 0x1161, lasts = 0x11a7;
constexpr char32_t first_count = 19, middle_count = 21, last_count = 28;
constexpr char32_t syllable_count = first_count * middle_count * last_count;

class Packed {
 public:
  explicit Packed(std::string_view text) : text_(text) {}
  bool done() const { return at_ == text_.size(); }
  std::uint32_t number() {
    std::uint32_t value = 0;
    for (int shift = 0;; shift += 5) {
      const std::uint32_t digit = digit_of(text_[at_++]);
      value |= (digit % 32) << shift;
      if (digit < 32) return value;
    }
  }
  std::int32_t difference() {
    const std::uint32_t value = number();
    return value % 2 == 0 ? static_cast<std::int32_t>(value / 2) : -static_cast<std::int32_t>(value / 2) - 1;
  }

 private:
  static std::uint32_t digit_of(char c) {
    if (c >= 'A' && c <= 'Z') return static_cast<std::uint32_t>(c - 'A');
    if (c >= 'a' && c <= 'z') return static_cast<std::uint32_t>(c - 'a') + 26;
    if (c >= '0' && c <= '9') return static_cast<std::uint32_t>(c - '0') + 52;
    return c == '+' ? 62 : 63;
  }
  std::string_view text_;
  std::size_t at_ = 0;
};

std::uint64_t pair_of(char32_t first, char32_t second) { return std::uint64_t{first} << 32 | second; }

}  // namespace

CharacterMap::CharacterMap(std::string_view packed) {
  Packed numbers(packed);
  char32_t key = 0, value = 0;
  begin_.push_back(0);
  while (!numbers.done()) {
    keys_.push_back(key += numbers.number());
    for (std::uint32_t left = numbers.number(); left > 0; --left)
      characters_ += value = static_cast<char32_t>(static_cast<std::int32_t>(value) + numbers.difference());
    begin_.push_back(static_cast<std::uint32_t>(characters_.size()));
  }
}

std::u32string_view CharacterMap::find(char32_t c) const {
  const auto key = std::lower_bound(keys_.begin(), keys_.end(), c);
  if (key == keys_.end() || *key != c) return {};
  const auto i = static_cast<std::size_t>(key - keys_.begin());
  return std::u32string_view(characters_).substr(begin_[i], begin_[i + 1] - begin_[i]);
}

NormalForm::NormalForm(Form form)
    : form_(form), canonical_(canonical_data()), compatible_(compatible_data()), classes_(class_data()) {
  const CharacterMap pairs(composition_data());
  for (char32_t c : pairs.keys()) {
    const std::u32string_view pair = pairs.find(c);
    compositions_.emplace(pair_of(pair[0], pair[1]), c);
  }
  mark_changes();
}

void NormalForm::mark_changes() {
  const auto mark = [&](char32_t c) {
    if (changes_.size() <= c) changes_.resize(c + 1);
    changes_[c] = true;
  };
  for (char32_t c : classes_.keys()) mark(c);
  const auto mark_decomposed = [&](const CharacterMap& map) {
    for (char32_t c : map.keys()) {
      if (!composes()) {
        mark(c);
        continue;
      }
      std::u32string parts;
      decompose(c, parts);
      std::string again;
      normalise(std::u32string_view(&c, 1), again);
      if (again != text_of_character(c)) mark(c);
    }
  };
  mark_decomposed(canonical_);
  if (compatible()) mark_decomposed(compatible_);
  if (!composes()) {
    for (char32_t c = syllables; c < syllables + syllable_count; ++c) mark(c);
    return;
  }
  for (const auto& [pair, c] : compositions_) mark(static_cast<char32_t>(pair & 0xffffffffu));
  for (char32_t c = middles; c < middles + middle_count; ++c) mark(c);
  for (char32_t c = lasts + 1; c < lasts + last_count; ++c) mark(c);
}

std::uint8_t NormalForm::class_of(char32_t c) const {
  if (c < 0x300) return 0;
  const std::u32string_view found = classes_.find(c);
  return found.empty() ? 0 : static_cast<std::uint8_t>(found[0]);
}

void NormalForm::decompose(char32_t c, std::u32string& into) const {
  if (c >= syllables && c < syllables + syllable_count) {
    const char32_t index = c - syllables;
    into += firsts + index / (middle_count * last_count);
    into += middles + index % (middle_count * last_count) / last_count;
    if (index % last_count != 0) into += lasts + index % last_count;
    return;
  }
  std::u32string_view parts;
  if (compatible()) parts = compatible_.find(c);
  if (parts.empty()) parts = canonical_.find(c);
  if (parts.empty()) {
    into += c;
  } else {
    into += parts;
  }
}

char32_t NormalForm::composed(char32_t first, char32_t second) const {
  if (first >= firsts && first < firsts + first_count && second >= middles && second < middles + middle_count)
    return syllables + ((first - firsts) * middle_count + (second - middles)) * last_count;
  if (first >= syllables && first < syllables + syllable_count && (first - syllables) % last_count == 0 &&
      second > lasts && second < lasts + last_count)
    return first + (second - lasts);
  const auto found = compositions_.find(pair_of(first, second));
  return found == compositions_.end() ? 0 : found->second;
}

void NormalForm::normalise(std::u32string_view part, std::string& into) const {
  std::u32string all;
  for (char32_t c : part) decompose(c, all);
  struct Mark {
    char32_t character;
    std::uint8_t order;
  };
  std::vector<Mark> marks;
  for (char32_t c : all) marks.push_back({c, class_of(c)});
  for (auto begin = marks.begin(); begin != marks.end();) {  // between two of class 0, marks go by their class
    if (begin->order == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, marks.end(), [](const Mark& mark) { return mark.order == 0; });
    std::stable_sort(begin, end, [](const Mark& a, const Mark& b) { return a.order < b.order; });
    begin = end;
  }
  if (!composes()) {
    for (const Mark& mark : marks) append_character(into, mark.character);
    return;
  }
  std::u32string result;
  std::size_t starter = std::u32string::npos;
  std::uint8_t last = 0;  // class of the character put into the result last
  for (const Mark& mark : marks) {
    const bool after_starter = starter != std::u32string::npos;
    const bool next_to_it = after_starter && starter + 1 == result.size();
    // What stands between keeps a mark away from its starter if it has the same class, or a higher one, or none.
    const char32_t c =
        after_starter && (next_to_it || last < mark.order) ? composed(result[starter], mark.character) : 0;
    if (c != 0) {
      result[starter] = c;
      continue;
    }
    if (mark.order == 0) starter = result.size();
    result += mark.character;
    last = mark.order;
  }
  for (char32_t c : result) append_character(into, c);
}

std::string NormalForm::apply(std::string_view text) const {
  std::string result;
  result.reserve(text.size());
  std::size_t copied = 0;   // the text before it is in the result
  std::size_t starter = 0;  // the last character that begins a part: it does not change by itself
  std::u32string part;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    if (!may_change(next_character(text, at))) {
      starter = begin;
      continue;
    }
    // The part: from the starter up to the next character that neither changes nor is changed.
    std::size_t end = at;
    while (end < text.size()) {
      std::size_t next = end;
      if (!may_change(next_character(text, next))) break;
      end = next;
    }
    const std::size_t from = std::max(starter, copied);
    result += text.substr(copied, from - copied);
    part.clear();
    for (std::size_t i = from; i < end;) part += next_character(text, i);
    normalise(part, result);
    copied = at = starter = end;
  }
  result += text.substr(copied);
  return result;
}

}  // namespace weft
