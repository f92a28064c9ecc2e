// Documents for --mock-data, the same as Megatron's: 100000 of them, 1 to 4095 tokens long; each counts 1, 2, 3, ...
// modulo the vocabulary and ends with the end-of-document id. A model can learn them (the next token is one more), and
// losses can be compared with Megatron's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "weft/data/documents.h"

namespace weft {

class MockDocuments final : public Documents {
 public:
  MockDocuments(std::int64_t vocabulary_size, std::int32_t eod);

  std::int64_t count() const override { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t length(std::int64_t document) const override { return lengths_[static_cast<std::size_t>(document)]; }
  void read(std::int64_t document, std::int64_t offset, std::span<std::int32_t> out) const override;
  std::string identity() const override;

 private:
  std::int64_t vocabulary_size_;
  std::int32_t eod_;
  std::vector<std::int32_t> lengths_;
};

}  // namespace weft
