#include "weft/train/token_check.h"

#include <algorithm>
#include <limits>

#include "weft/base/error.h"

namespace weft {

namespace {

void require_tokens(const MicroBatch& batch, std::int64_t vocabulary) {
  const auto require = [&](bool inside, const char* what, std::int32_t token) {
    if (!inside)
      throw UserError("{} {} is outside the vocabulary of {}; was the data made with another tokenizer? (--vocab-size)",
                      what, token, vocabulary);
  };
  for (std::int32_t token : batch.tokens) require(token >= 0 && token < vocabulary, "token", token);
  for (std::int32_t label : batch.labels) require(label < vocabulary, "label", label);
}

}  // namespace

std::int64_t copy_checked(const MicroBatch& batch, std::int64_t vocabulary, std::span<std::int32_t> tokens,
                          std::span<std::int32_t> labels) {
  const std::size_t size = tokens.size();
  WEFT_CHECK(batch.tokens.size() == size && batch.labels.size() == size && labels.size() == size,
             "{} tokens and {} labels for a step of {}", batch.tokens.size(), batch.labels.size(), size);
  // The sign bit of x | (last - x) is set where x is negative or above last. One loop without an exit: most often no cache
  // holds any of it, and two lists load faster together. Only if it finds something suspicious (labels near -2^31 are) are
  // the tokens checked one by one.
  const auto last =
      static_cast<std::uint32_t>(std::min<std::int64_t>(vocabulary - 1, std::numeric_limits<std::int32_t>::max()));
  std::uint32_t bits = 0;
  std::int32_t counted = 0;  // 32 bits, like the labels
  for (std::size_t i = 0; i < size; ++i) {
    const std::int32_t token = batch.tokens[i], label = batch.labels[i];
    bits |= static_cast<std::uint32_t>(token) | (last - static_cast<std::uint32_t>(token)) |
            (last - static_cast<std::uint32_t>(label));
    counted += label >= 0;
    tokens[i] = token;
    labels[i] = label;
  }
  if (bits >> 31 == 0) return counted;
  require_tokens(batch, vocabulary);
  return counted;
}

void check_tokens(const MicroBatch& batch, std::int64_t vocabulary) {
  const auto last =
      static_cast<std::uint32_t>(std::min<std::int64_t>(vocabulary - 1, std::numeric_limits<std::int32_t>::max()));
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    const std::int32_t token = batch.tokens[i];
    bits |= static_cast<std::uint32_t>(token) | (last - static_cast<std::uint32_t>(token)) |
            (last - static_cast<std::uint32_t>(batch.labels[i]));
  }
  if (bits >> 31 != 0) require_tokens(batch, vocabulary);
}

std::int64_t counted_labels(std::span<const MicroBatch> batches) {
  std::int64_t counted = 0;
  for (const MicroBatch& batch : batches)
    counted += std::count_if(batch.labels.begin(), batch.labels.end(), [](std::int32_t label) { return label >= 0; });
  return counted;
}

std::int64_t counted_labels_before(const MicroBatch& batch, std::int64_t positions) {
  std::int64_t counted = 0;
  if (!batch.boundaries.empty()) {
    for (std::int64_t t = 0; t < std::ssize(batch.labels); ++t) {
      const auto i = static_cast<std::size_t>(t);
      counted += t - batch.boundaries[i] < positions && batch.labels[i] >= 0;
    }
    return counted;
  }
  for (std::int64_t begin = 0; begin < std::ssize(batch.labels); begin += batch.length)
    for (std::int64_t t = begin; t < begin + std::min(positions, batch.length); ++t)
      counted += batch.labels[static_cast<std::size_t>(t)] >= 0;
  return counted;
}

}  // namespace weft
