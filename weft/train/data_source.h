// The tokens of a run, as its options ask for them.
#pragma once

#include <memory>

#include "weft/data/token_source.h"
#include "weft/data/tokenizer.h"
#include "weft/train/options.h"

namespace weft {

struct RunData {
  std::unique_ptr<Tokenizer> tokenizer;  // null: as of tokenizer_of
  DataSplits splits;
  double letter_entropy = 0;  // nats a token, of guessing by letter frequency; 0 where it is not known
};
// `vocabulary`: of the model, 0 where the tokenizer decides. UserError for text where there is no tokenizer.
RunData open_run_data(const TrainOptions& options, std::int64_t vocabulary);
// Null where a loaded model has ids of its own, nobody has said what they mean, and they are not those of bytes.
std::unique_ptr<Tokenizer> tokenizer_of(const TrainOptions& options, std::int64_t vocabulary);

}  // namespace weft
