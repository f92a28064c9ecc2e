// Cuts a text into the pieces that the model encodes one by one: a list of steps, each of which cuts the pieces of the one
// before.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "weft/data/tokenizers/byte_letters.h"
#include "weft/data/tokenizers/regex.h"

namespace weft {

// What becomes of the matches of a pattern; what is between them are pieces.
enum class SplitBehavior : std::uint8_t { removed, isolated, merged_with_previous, merged_with_next, contiguous };

struct SplitStep {
  Regex pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  // what is between the matches counts as a match, and they do not
};
struct PrefixSpaceStep {};  // a space before every piece that has none
struct BytesStep {};        // patterns that follow see letters that stand for bytes; pieces stay as they are
struct MetaspaceStep {
  enum class Prepend : std::uint8_t { first, never, always } prepend = Prepend::always;
  std::string replacement;  // of spaces
};
using PreTokenizerStep = std::variant<SplitStep, PrefixSpaceStep, BytesStep, MetaspaceStep>;

class PieceSink {
 public:
  virtual ~PieceSink() = default;
  virtual void piece(std::string_view text) = 0;  // not empty
};

class PreTokenizer {
 public:
  PreTokenizer() = default;
  explicit PreTokenizer(std::vector<PreTokenizerStep> steps) : steps_(std::move(steps)) {}

  // `at_beginning`: the text is the beginning of a document.
  void split(std::string_view text, bool at_beginning, RegexScratch& scratch, PieceSink& sink) const;
  bool empty() const { return steps_.empty(); }

 private:
  struct Run;
  std::vector<PreTokenizerStep> steps_;
  ByteLetters letters_;
};

}  // namespace weft
