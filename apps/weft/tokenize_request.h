// What `weft tokenize` is asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "weft/data/tokenizer_choice.h"

namespace weft {

enum class DocumentsAre : std::uint8_t { blank_lines, lines, whole };

struct TokenizeRequest {
  std::string input, prefix, stories_text;
  TokenizerChoice tokenizer;
  std::size_t stories = 0;  // bytes; 0: the input is a file
  DocumentsAre documents = DocumentsAre::blank_lines;
  std::int64_t seed = 1, threads = 0;
  std::vector<std::string> key_lists, keys = {"text"};
  bool append_eod = false, add_special_tokens = false, json = false, overwrite = false;
  bool print_ids = false, decode = false, skip_special_tokens = false;
  bool json_lines = false;  // the input's form
};

}  // namespace weft
