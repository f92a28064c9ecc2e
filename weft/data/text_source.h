// Samples of a text held in memory. The last part of the text is kept for validation. The rest is cut into windows of
// seq_length tokens, from a new starting point and in a new shuffled order in each epoch. There is no index: sample i is
// computed from the seed and i.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "weft/data/token_source.h"
#include "weft/data/tokenizer.h"

namespace weft {

struct TextDataOptions {
  std::int64_t seq_length = 0;
  std::uint64_t seed = 1234;
  double held_out = 0.05;  // share of the text for validation; 0: none
};

// Where the held-out part begins: at the first blank line (else line, else byte) after 1 - held_out of the text.
std::size_t held_out_begin(std::string_view text, double held_out);

// train and valid, both endless. Validation reads the windows of the held-out part in order. Messages and the identity
// call the text `name`. UserError when a part is shorter than a sample.
DataSplits open_text_data(std::string_view text, const Tokenizer& tokenizer, const TextDataOptions& options,
                          const std::string& name);

}  // namespace weft
