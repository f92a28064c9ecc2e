// Text that is made from a seed: words from syllables, some far more often than others, in sentences with numbers, capitals,
// punctuation and a little Cyrillic and Chinese. One word in twenty is new.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "weft/base/random.h"

namespace weft {

class MadeText {
 public:
  // Words are those of `seed`; each text is drawn with a seed of its own.
  MadeText(std::uint64_t seed, std::size_t words) : seed_(seed) {
    words_.reserve(words);
    for (std::uint64_t i = 0; i < words; ++i) words_.push_back(word(random_key(seed, "words"), i));
  }

  const std::vector<std::string>& words() const { return words_; }
  // How often the word of this place is used, as a share of the most frequent one's.
  static double frequency(std::size_t place) { return 1 / std::pow(static_cast<double>(place) + 2.7, 1.05); }

  std::string text(std::uint64_t seed, std::size_t bytes) const {
    const std::uint64_t key = random_key(seed, "text"), fresh = random_key(seed, "new words");
    std::string result;
    result.reserve(bytes + 100);
    std::uint64_t i = 0;
    const auto below = [&](std::uint64_t bound) { return random_below(key, i++, bound); };
    while (result.size() < bytes) {
      const std::uint64_t length = 4 + below(16);
      for (std::uint64_t w = 0; w < length; ++w) {
        if (w > 0) result += ' ';
        const std::uint64_t kind = below(100);
        if (kind < 3) {
          result += std::to_string(below(kind == 0 ? 1000000 : 2030));
          continue;
        }
        std::string next = kind < 8 ? word(fresh, below(1 << 30)) : words_[drawn(key, i++)];
        if ((w == 0 || kind == 99) && next[0] >= 'a' && next[0] <= 'z') next[0] = static_cast<char>(next[0] - 32);
        result += next;
        if (kind == 98) result += "'s";
        if (kind > 90 && kind < 96) result += ',';
      }
      const std::uint64_t end = below(20);
      result += end == 0 ? "?\n\n" : end == 1 ? "!\n" : end == 2 ? ":\n\n    " : ". ";
    }
    return result;
  }

 private:
  static std::string word(std::uint64_t key, std::uint64_t i) {
    static const std::vector<std::string> begins = {"b",  "br",  "c", "ch", "d",  "dr", "f",  "fl", "g", "gr", "h",
                                                    "j",  "k",   "l", "m",  "n",  "p",  "pr", "qu", "r", "s",  "sh",
                                                    "st", "str", "t", "th", "tr", "v",  "w",  "wh", "y", ""};
    static const std::vector<std::string> middles = {"a", "e", "i", "o", "u", "ai", "ea", "ee", "io", "ou", "y", "oo"};
    static const std::vector<std::string> ends = {"",  "",   "",   "n",  "r",  "s",  "t",    "l",  "d",
                                                  "m", "ng", "nd", "st", "ck", "ss", "tion", "ly", "ment"};
    std::uint64_t j = 0;
    const auto one_of = [&](const std::vector<std::string>& parts) {
      return parts[random_below(random_key(key, "letters"), i * 16 + j++, parts.size())];
    };
    const std::uint64_t kind = random_below(key, i, 100);
    std::string result;
    if (kind < 4) {  // Cyrillic, Chinese
      for (std::uint64_t n = 2 + kind; n > 0; --n) {
        const std::uint64_t c = random_below(random_key(key, "letters"), i * 16 + j++, kind < 3 ? 32 : 400);
        if (kind < 3) {
          result += static_cast<char>(0xd0 + (c >= 16));
          result += static_cast<char>(c >= 16 ? 0x80 + (c - 16) : 0xb0 + c);
        } else {
          result += static_cast<char>(0xe4 + c / 100);
          result += static_cast<char>(0x80 + c % 64);
          result += static_cast<char>(0x80 + c / 7);
        }
      }
      return result;
    }
    for (std::uint64_t n = 1 + kind % 3; n > 0; --n) result += one_of(begins) + one_of(middles) + one_of(ends);
    return result;
  }
  // A place of a word, the first ones most often.
  std::size_t drawn(std::uint64_t key, std::uint64_t i) const {
    const double u = random_uniform(key, i), n = static_cast<double>(words_.size());
    return std::min(words_.size() - 1, static_cast<std::size_t>(std::pow(n, u * u * 0.4 + u * 0.6) - 1));
  }

  std::uint64_t seed_;
  std::vector<std::string> words_;
};

}  // namespace weft
