// The lists of steps in a tokenizer.json.
#pragma once

#include "weft/data/tokenizers/decoder.h"
#include "weft/data/tokenizers/json_fields.h"
#include "weft/data/tokenizers/normalizer.h"
#include "weft/data/tokenizers/pre_tokenizer.h"

namespace weft {

// `json`: null, one step, or a Sequence of them; `place` names it in messages. UserError for a step that is wrong or that
// Weft lacks.
Normalizer read_normalizer(const Json& json, const std::string& place);
// `of_bytes` becomes true where text is encoded by bytes.
PreTokenizer read_pre_tokenizer(const Json& json, const std::string& place, bool& of_bytes);
Decoder read_decoder(const Json& json, const std::string& place);

}  // namespace weft
