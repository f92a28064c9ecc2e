#include "weft/train/token_check.h"

#include <algorithm>
#include <limits>

#include "weft/base/error.h"

namespace weft {

void require_in_vocabulary(const MicroBatch& batch, std::int64_t vocabulary) {
  // The sign bit of x | (last - x) is set where x is negative or above last. Loops without an exit; what they find
  // suspicious (labels of about -2^31 are) is looked at one by one.
  const auto last =
      static_cast<std::uint32_t>(std::min<std::int64_t>(vocabulary - 1, std::numeric_limits<std::int32_t>::max()));
  std::uint32_t bits = 0;
  for (std::int32_t token : batch.tokens)
    bits |= static_cast<std::uint32_t>(token) | (last - static_cast<std::uint32_t>(token));
  for (std::int32_t label : batch.labels) bits |= last - static_cast<std::uint32_t>(label);
  if (bits >> 31 == 0) return;
  const auto require = [&](bool inside, const char* what, std::int32_t token) {
    if (!inside)
      throw UserError("{} {} is outside the vocabulary of {}; is the data made with another tokenizer? (--vocab-size)",
                      what, token, vocabulary);
  };
  for (std::int32_t token : batch.tokens) require(token >= 0 && token < vocabulary, "token", token);
  for (std::int32_t label : batch.labels) require(label < vocabulary, "label", label);
}

std::int64_t counted_labels(const MicroBatch& batch) {
  std::int32_t counted = 0;  // of 32 bits, as the labels are
  for (std::int32_t label : batch.labels) counted += label >= 0;
  return counted;
}

}  // namespace weft
