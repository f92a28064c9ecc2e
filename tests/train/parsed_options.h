// The words of a command line, read as `weft train` reads them, or the message that refuses them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/train/options.h"

namespace weft {

struct ParsedOptions {
  TrainOptions options;
  FlagTable flags{"weft train"};

  ParsedOptions() { add_train_flags(flags, options); }
  explicit ParsedOptions(std::string_view words, std::int64_t launched = 1) : ParsedOptions() {
    parse(words, launched);
  }

  void parse(std::string_view words, std::int64_t launched = 1) {
    std::vector<std::string> list;
    for (const std::string& word : split(words, ' '))
      if (!word.empty()) list.push_back(word);
    parse_train_options(flags, options, list, [launched] { return launched; });
  }
};

inline std::string error_of(std::string_view words, std::int64_t launched = 1) {
  try {
    ParsedOptions run(words, launched);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

// The text of the only problem.
inline std::string problem_of(std::string_view words, std::int64_t launched = 1) {
  const std::string error = error_of(words, launched);
  const std::string head = "the configuration has a problem:\n  - ";
  return error.rfind(head, 0) == 0 ? error.substr(head.size()) : error;
}

}  // namespace weft
