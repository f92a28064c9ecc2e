// Texts to ids and back, line by line: `weft tokenize --print-ids` and `--decode`.
#pragma once

#include <cstdio>
#include <istream>

#include "apps/weft/tokenize_request.h"

namespace weft {

// {"text": "..."} lines of `in` become lists of ids on `out`. UserError names the line.
void print_ids(const TokenizeRequest& request, const Tokenizer& tokenizer, std::istream& in, std::FILE* out);
// The way back.
void print_texts(const TokenizeRequest& request, const Tokenizer& tokenizer, std::istream& in, std::FILE* out);

}  // namespace weft
