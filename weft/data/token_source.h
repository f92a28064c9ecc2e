// What the training loop reads. A source gives any sample by its global index, and the same index always gives the same
// tokens: the loop's only state is a count of samples, and every data-parallel layout reads exactly the same data.
// Reading from several threads is safe.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace weft {

// Token index = sample * length + position. labels[i] is the token that follows tokens[i]; -1: not counted in the loss.
struct MicroBatch {
  std::vector<std::int32_t> tokens, labels;
  // Of every token, where documents of a sample are told apart (packed_documents.h): the index of the token at which its
  // document begins, and its position. Empty: a sample is one document.
  std::vector<std::int32_t> boundaries, positions;
  std::int64_t batch = 0, length = 0;
};

class TokenSource {
 public:
  static constexpr std::int64_t endless = std::numeric_limits<std::int64_t>::max();

  explicit TokenSource(std::int64_t length);
  virtual ~TokenSource() = default;

  // Samples first_sample .. first_sample + count - 1. UserError past the last sample.
  virtual MicroBatch sample_batch(std::int64_t first_sample, int count) const;

  std::int64_t length() const { return length_; }  // tokens per sample
  virtual std::int64_t samples() const = 0;        // their number, or `endless`
  // One line that determines every token of every sample, for messages.
  virtual std::string identity() const = 0;

 protected:
  // The length + 1 tokens of one sample.
  virtual void read_sample(std::int64_t sample, std::span<std::int32_t> window) const = 0;

 private:
  std::int64_t length_;
};

// A split without data is null.
struct DataSplits {
  std::unique_ptr<TokenSource> train, valid, test;
};

}  // namespace weft
