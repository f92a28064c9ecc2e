// A compiled pattern over UTF-8. It does not change and any thread may search with it, each with a RegexScratch of its own.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "weft/data/tokenizers/regex_syntax.h"

namespace weft {

// Where a thread keeps what a search found. Serves all patterns.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(RegexScratch&&) noexcept;
  RegexScratch& operator=(RegexScratch&&) = delete;

 private:
  friend class Regex;
  struct State;
  std::unique_ptr<State> state_;
};

class Regex {
 public:
  struct Match {
    std::size_t begin = 0, end = 0;
  };

  // UserError "WHERE: ..." for a pattern that is wrong or has no equivalent.
  Regex(std::string_view pattern, RegexDialect dialect, const std::string& where);
  // The pattern that finds this text.
  static Regex of_text(std::string_view text, const std::string& where);

  // The first match at `from` or after it; `text` is valid UTF-8. UserError when the pattern needs too many steps.
  bool search(std::string_view text, std::size_t from, RegexScratch& scratch, Match& match) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace weft
