// A tokenizer of Hugging Face's or of tiktoken's kind, as data: added tokens, normalizer, pre-tokenizer, byte pair encoding,
// decoder.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "weft/data/tokenizer.h"
#include "weft/data/tokenizers/added_tokens.h"
#include "weft/data/tokenizers/bpe.h"
#include "weft/data/tokenizers/decoder.h"
#include "weft/data/tokenizers/normalizer.h"
#include "weft/data/tokenizers/pre_tokenizer.h"
#include "weft/data/tokenizers/vocabulary.h"

namespace weft {

// What the parts of a tokenizer's file say. Texts of a vocabulary of bytes are bytes; those that are not findable are what
// the file has, as its letters do not all stand for bytes.
struct PipelineParts {
  std::string where;  // the file, for messages
  Vocabulary vocabulary;
  std::vector<Merge> merges;
  BpeRules rules;
  std::vector<AddedToken> added, added_after_normalizer;          // of the second, the text is normalised
  std::vector<std::pair<std::int32_t, std::string>> added_texts;  // what they decode to
  std::vector<std::int32_t> special;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Decoder decoder;
  std::vector<std::int32_t> before, after;  // special tokens around a text
  std::int32_t eod = no_token;
};

std::unique_ptr<Tokenizer> make_pipeline(PipelineParts parts);

}  // namespace weft
