// Megatron's indexed data set: PREFIX.bin holds the tokens of all sequences back to back, PREFIX.idx holds their offsets
// and the type of a token. Both are mapped; only what a sample reads is copied. docs/data.md has the layout.
//
// Opening checks everything that can be checked without reading tokens: magic, version, token type, counts against the
// size of the file, lengths, pointers, document boundaries, the size of the .bin. Tokens are checked against the
// vocabulary when they are read. Every failure is a UserError that names the file and the place; a file that is changed
// later a RunError.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/data/documents.h"

namespace weft {

// The codes of the .idx file. It also knows two floating-point types (6, 7), which hold no tokens.
enum class TokenType : std::uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8 };

std::size_t size_of(TokenType type);  // bytes per token
std::string_view name_of(TokenType type);
// What a writer uses: 16 bits for a vocabulary below 65500, else 32. A reader trusts the .idx, never this rule: Megatron
// has used another threshold.
TokenType token_type_for(std::int64_t vocabulary_size);

// PREFIX + ".bin" or ".idx". UserError when the prefix already ends in one of them.
std::filesystem::path indexed_dataset_file(const std::string& prefix, std::string_view extension);

class IndexedDataset final : public Documents {
 public:
  IndexedDataset(const std::string& prefix, std::int64_t vocabulary_size);

  // A document of the order is a sequence of the file: Megatron's preprocessing writes one sequence per document.
  std::int64_t count() const override { return sequences_; }
  std::int64_t length(std::int64_t sequence) const override;
  void read(std::int64_t sequence, std::int64_t offset, std::span<std::int32_t> out) const override;
  std::string identity() const override;

  TokenType token_type() const { return type_; }
  std::int64_t tokens() const { return tokens_; }
  // The first sequence of each document, then the number of sequences.
  std::vector<std::int64_t> document_boundaries() const;

 private:
  std::int64_t pointer(std::int64_t sequence) const;  // byte offset in the .bin
  RunError changed() const;
  std::string checksum_of_files() const;
  void check_header();
  void check_sequences();
  template <class Token>
  void read_as(std::int64_t sequence, std::int64_t offset, std::span<std::int32_t> out) const;

  std::filesystem::path index_path_, token_path_;
  MappedFile index_, token_file_;
  std::int64_t vocabulary_size_;
  TokenType type_{};
  std::int64_t sequences_ = 0, boundaries_ = 0, tokens_ = 0;
  std::string checksum_;
};

}  // namespace weft
