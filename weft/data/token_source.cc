#include "weft/data/token_source.h"

#include <algorithm>

#include "weft/base/error.h"

namespace weft {

TokenSource::TokenSource(std::int64_t length) : length_(length) {
  if (length < 1) throw UserError("--seq-length {}: must be at least 1", length);
}

MicroBatch TokenSource::sample_batch(std::int64_t first_sample, int count) const {
  WEFT_CHECK(first_sample >= 0 && count >= 0, "samples {} + {}", first_sample, count);
  if (first_sample > samples() - count) {
    throw UserError(
        "the data ends before sample {}, but the run needs sample {} ({}); train for fewer iterations or give more "
        "data",
        samples(), first_sample + count - 1, identity());
  }
  MicroBatch result;
  result.batch = count;
  result.length = length_;
  result.tokens.resize(static_cast<std::size_t>(count * length_));
  result.labels.resize(result.tokens.size());
  std::vector<std::int32_t> window(static_cast<std::size_t>(length_) + 1);
  for (int i = 0; i < count; ++i) {
    read_sample(first_sample + i, window);
    std::copy(window.begin(), window.end() - 1, result.tokens.begin() + i * length_);
    std::copy(window.begin() + 1, window.end(), result.labels.begin() + i * length_);
  }
  return result;
}

}  // namespace weft
