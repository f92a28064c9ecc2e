// A text, JSON lines or stories -> Megatron token files, on several threads.
#pragma once

#include <cstdio>

#include "apps/weft/tokenize_request.h"

namespace weft {

// The summary goes to `out`. UserError for what is wrong with the input; then there are no new files.
void tokenize_files(const TokenizeRequest& request, const Tokenizer& tokenizer, std::FILE* out);

}  // namespace weft
