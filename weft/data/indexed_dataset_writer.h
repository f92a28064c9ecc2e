// Writes a Megatron indexed data set (indexed_dataset.h), one sequence per document. Both files are written under
// temporary names and renamed by finish(), the .idx last: a data set that has its .idx is complete. A writer that is
// destroyed before finish() leaves no files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weft/base/file.h"
#include "weft/data/indexed_dataset.h"

namespace weft {

class IndexedDatasetWriter {
 public:
  // UserError when the files cannot be created.
  IndexedDatasetWriter(const std::string& prefix, std::int64_t vocabulary_size);

  void add_document(std::span<const std::int32_t> tokens);
  // RunError when the files cannot be completed.
  void finish();

  TokenType token_type() const { return type_; }
  std::int64_t documents() const { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t tokens() const { return tokens_; }
  const std::filesystem::path& token_path() const { return token_path_; }
  const std::filesystem::path& index_path() const { return index_path_; }

 private:
  std::string index_bytes() const;
  void write_packed();

  std::filesystem::path token_path_, index_path_;
  std::int64_t vocabulary_size_;
  TokenType type_;
  std::unique_ptr<NewFile> file_;  // of the tokens; null once finished
  std::vector<std::int32_t> lengths_;
  std::vector<std::byte> packed_;  // tokens in the file's type, not yet written
  std::int64_t tokens_ = 0;
};

}  // namespace weft
