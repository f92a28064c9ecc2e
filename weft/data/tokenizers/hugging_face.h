// tokenizer.json of Hugging Face, with byte pair encoding; also the older pair of vocab.json and merges.txt of GPT-2.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "weft/data/tokenizer.h"

namespace weft {

// `text` is the file's, which messages call `where`. `end_of_document` is a token; absent, a known name among the added
// ones is. UserError for what is wrong with the file, and for parts of a tokenizer that Weft lacks.
std::unique_ptr<Tokenizer> parse_hugging_face_tokenizer(std::string_view text, const std::string& where,
                                                        const std::optional<std::string>& end_of_document);
// The file, and what the files beside it say of the end of a document: tokenizer_config.json's eos_token.
std::unique_ptr<Tokenizer> read_hugging_face_tokenizer(const std::filesystem::path& file);
// Byte-level, split as GPT-2 does; <|endoftext|> ends a document.
std::unique_ptr<Tokenizer> read_gpt2_tokenizer(const std::filesystem::path& vocabulary,
                                               const std::filesystem::path& merges);

}  // namespace weft
