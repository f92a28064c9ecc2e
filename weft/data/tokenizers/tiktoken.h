// Files of tiktoken: the bytes of tokens in base64, whose ranks are the order of merges too. Megatron keeps them as JSON;
// plain ones have a token and its rank on each line.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "weft/data/tokenizer.h"

namespace weft {

// The patterns that split text, by name: v1 and v2 are Megatron's.
inline constexpr std::array<std::string_view, 6> tiktoken_patterns = {"v1", "v2", "cl100k", "o200k", "llama3", "gpt2"};

struct TiktokenOptions {
  std::string pattern;               // of tiktoken_patterns; "": v2 for JSON, cl100k for plain text
  std::int64_t special_tokens = -1;  // ids before the first token's; -1: 1000 for JSON, none for plain text
  std::int64_t vocabulary = 0;       // with the special ones; 0: 131072 for JSON, all tokens of plain text
  std::vector<std::string>
      special;  // names of the first special ones, <unk>, <s> and </s> among them; empty: Megatron's
};

// `text` is the file's, which messages call `where`. UserError for what is wrong with it.
std::unique_ptr<Tokenizer> parse_tiktoken(std::string_view text, const std::string& where,
                                          const TiktokenOptions& options);
std::unique_ptr<Tokenizer> read_tiktoken(const std::filesystem::path& file, const TiktokenOptions& options);

}  // namespace weft
