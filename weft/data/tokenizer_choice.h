// Which tokenizer a run uses: by Megatron's names, or by what its file holds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weft/data/tokenizer.h"

namespace weft {

struct TokenizerChoice {
  std::string type;                    // Megatron's --tokenizer-type; "": what the file is
  std::int64_t vocab_size = 0;         // of NullTokenizer and TikTokenizer; 0: not given
  std::string model;                   // a file, or a folder that holds one
  std::string vocab_file, merge_file;  // of GPT2BPETokenizer, instead of a model
  std::string tiktoken_pattern;
  std::int64_t tiktoken_num_special_tokens = -1;  // -1: not given
  std::vector<std::string> special_tokens;        // names of TikTokenizer's first ones; empty: Megatron's
  std::shared_ptr<const Tokenizer> loaded;        // once it is read; copies of a choice share it
};

// Whether tokenizers of this type are read from a file.
bool is_read_from_file(const std::string& tokenizer_type);
bool names_file(const TokenizerChoice& choice);
// UserError for an unknown type, one that lacks what it needs, and a file that cannot be read.
std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerChoice& choice);
// The same, unless it is loaded.
std::shared_ptr<const Tokenizer> tokenizer_of(const TokenizerChoice& choice);
// The files that a folder must hold so that the same tokenizer is found in it, with their bytes; none where flags beside the
// file decide what it is.
std::vector<std::pair<std::string, std::string>> tokenizer_files(const TokenizerChoice& choice);
// "": the folder holds no tokenizer's file.
std::filesystem::path tokenizer_file_in(const std::filesystem::path& folder);

}  // namespace weft
