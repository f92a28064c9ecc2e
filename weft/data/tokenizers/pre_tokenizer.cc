#include "weft/data/tokenizers/pre_tokenizer.h"

#include "weft/data/tokenizers/utf8.h"

namespace weft {

// One text on its way through the steps. Nothing is kept but where the step of each depth is.
struct PreTokenizer::Run {
  const PreTokenizer& steps;
  RegexScratch& scratch;
  PieceSink& sink;

  // `bytes`: a BytesStep has passed.
  void pass(std::string_view text, bool at_beginning, bool bytes, std::size_t step) {
    if (text.empty()) return;
    if (step == steps.steps_.size()) return sink.piece(text);
    const PreTokenizerStep& now = steps.steps_[step];
    if (const auto* split = std::get_if<SplitStep>(&now)) {
      if (bytes) return split_letters(*split, text, at_beginning, step);
      split_text(*split, text, [&](std::size_t begin, std::size_t end) {
        pass(text.substr(begin, end - begin), at_beginning && begin == 0, bytes, step + 1);
      });
    } else if (std::holds_alternative<BytesStep>(now)) {
      pass(text, at_beginning, true, step + 1);
    } else if (std::holds_alternative<PrefixSpaceStep>(now)) {
      if (text.starts_with(' ')) return pass(text, at_beginning, bytes, step + 1);
      pass(" " + std::string(text), at_beginning, bytes, step + 1);
    } else {
      pass(with_symbols(std::get<MetaspaceStep>(now), text, at_beginning), at_beginning, bytes, step + 1);
    }
  }

  static std::string with_symbols(const MetaspaceStep& step, std::string_view text, bool at_beginning) {
    std::string result;
    result.reserve(text.size() + text.size() / 2);
    using Prepend = MetaspaceStep::Prepend;
    const bool wanted = step.prepend == Prepend::always || (step.prepend == Prepend::first && at_beginning);
    if (wanted && !text.starts_with(' ') && !text.starts_with(step.replacement)) result += step.replacement;
    for (char c : text) {
      if (c == ' ') {
        result += step.replacement;
      } else {
        result += c;
      }
    }
    return result;
  }

  // The pattern sees each byte as a letter of one or two bytes.
  void split_letters(const SplitStep& step, std::string_view text, bool at_beginning, std::size_t depth) {
    const std::string letters = steps.letters_.to_letters(text);
    std::size_t at = 0, letter = 0;  // the byte that the letter stands for
    const auto byte_at = [&](std::size_t wanted) {
      for (; letter < wanted; ++at) letter += steps.letters_.size(text[at]);
      return at;
    };
    split_text(step, letters, [&](std::size_t begin, std::size_t end) {
      const std::size_t first = byte_at(begin), last = byte_at(end);
      pass(text.substr(first, last - first), at_beginning && first == 0, true, depth + 1);
    });
  }

  // Calls take(begin, end) for each piece in turn.
  template <class Take>
  void split_text(const SplitStep& step, std::string_view text, Take&& take) {
    struct Part {
      std::size_t begin = 0, end = 0;
      bool match = false;
    };
    Part held;  // may still grow; begin == end: nothing is held
    bool held_any = false, last_match = false;
    const auto give = [&](const Part& part) {
      if (part.begin < part.end) take(part.begin, part.end);
    };
    const auto add = [&](std::size_t begin, std::size_t end, bool match) {
      const Part part{begin, end, match != step.invert};
      switch (step.behavior) {
        case SplitBehavior::isolated:
          give(part);
          return;
        case SplitBehavior::removed:
          if (!part.match) give(part);
          return;
        case SplitBehavior::merged_with_previous:
        case SplitBehavior::merged_with_next:
        case SplitBehavior::contiguous:
          break;
      }
      const bool joins =
          held_any && (step.behavior == SplitBehavior::contiguous             ? part.match == last_match
                       : step.behavior == SplitBehavior::merged_with_previous ? part.match && !last_match
                                                                              : !part.match && last_match);
      if (joins) {
        held.end = end;
      } else {
        if (held_any) give(held);
        held = part;
        held_any = true;
      }
      last_match = part.match;
    };
    std::size_t done = 0;
    Regex::Match match;
    for (std::size_t at = 0; at <= text.size() && step.pattern.search(text, at, scratch, match);) {
      if (done < match.begin) add(done, match.begin, false);
      add(match.begin, match.end, true);
      done = at = match.end;
      if (match.begin == match.end)  // go on after the next character
        at = match.end < text.size() ? match.end + character_size(text[match.end]) : text.size() + 1;
    }
    if (done < text.size()) add(done, text.size(), false);
    if (held_any) give(held);
  }
};

void PreTokenizer::split(std::string_view text, bool at_beginning, RegexScratch& scratch, PieceSink& sink) const {
  Run{*this, scratch, sink}.pass(text, at_beginning, false, 0);
}

}  // namespace weft
