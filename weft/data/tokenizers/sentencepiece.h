// SentencePiece models of kind BPE and unigram, as SentencePiece itself encodes and decodes with them.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "weft/data/tokenizer.h"

namespace weft {

// `bytes` are the file's, which messages call `where`. UserError for what is wrong with it.
std::unique_ptr<Tokenizer> parse_sentencepiece(std::string_view bytes, const std::string& where);
std::unique_ptr<Tokenizer> read_sentencepiece(const std::filesystem::path& file);

}  // namespace weft
