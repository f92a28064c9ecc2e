// Tokenised documents, numbered from 0. The order of samples depends only on their number and lengths, not on where they
// come from (files, a rule). Reading from several threads is safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace weft {

class Documents {
 public:
  virtual ~Documents() = default;

  virtual std::int64_t count() const = 0;
  virtual std::int64_t length(std::int64_t document) const = 0;  // tokens
  // Fills `out` with the document's tokens from `offset` on; the range must lie inside the document.
  virtual void read(std::int64_t document, std::int64_t offset, std::span<std::int32_t> out) const = 0;
  // What the tokens come from, for messages and for the identity that a checkpoint keeps. It leaves out the location: a
  // data set stays the same when it is moved.
  virtual std::string identity() const = 0;
};

}  // namespace weft
