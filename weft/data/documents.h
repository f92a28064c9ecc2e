// Tokenised documents, numbered from 0. The order of samples needs only their number and lengths; what they are made of
// (files, a rule) stays behind this interface. Reading from several threads is safe.
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
  // What the tokens come from, for messages and for the identity that a checkpoint keeps. Not the location: a moved
  // data set is still the same one.
  virtual std::string identity() const = 0;
};

}  // namespace weft
