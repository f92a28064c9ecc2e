// What is done to a text before it is split: a list of steps.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "weft/data/tokenizers/normal_form.h"
#include "weft/data/tokenizers/regex.h"

namespace weft {

class Lowercase {
 public:
  Lowercase();
  std::string apply(std::string_view text) const;

 private:
  CharacterMap lower_;
};

struct StripSpaces {
  bool left = false, right = false;
};
struct ReplaceMatches {
  Regex pattern;
  std::string by;
};
struct PrependText {  // to a text that is not empty
  std::string text;
};

using NormalizerStep = std::variant<std::shared_ptr<const NormalForm>, std::shared_ptr<const Lowercase>, StripSpaces,
                                    ReplaceMatches, PrependText>;

// The text with every match replaced.
std::string replace_matches(const ReplaceMatches& replace, std::string_view text, RegexScratch& scratch);

// UserError when steps have made far more of a text than it was: a file could ask for any amount of memory.
void require_bounded(std::size_t bytes, std::size_t original);

class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

  bool empty() const { return steps_.empty(); }
  // `at_beginning` becomes false when the beginning of the text is taken away.
  std::string apply(std::string text, RegexScratch& scratch, bool& at_beginning) const;

 private:
  std::vector<NormalizerStep> steps_;
};

}  // namespace weft
