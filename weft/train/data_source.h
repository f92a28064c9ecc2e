// The tokens of a run, as its options ask for them.
#pragma once

#include <memory>

#include "weft/data/token_source.h"
#include "weft/data/tokenizer.h"
#include "weft/train/options.h"

namespace weft {

struct RunData {
  std::unique_ptr<Tokenizer> tokenizer;
  DataSplits splits;
  double letter_entropy = 0;  // nats a token, of guessing by letter frequency; 0 where it is not known
};
// `vocabulary`: of the model, 0 where the tokenizer decides.
RunData open_run_data(const TrainOptions& options, std::int64_t vocabulary);
std::unique_ptr<Tokenizer> tokenizer_of(const TrainOptions& options, std::int64_t vocabulary);

}  // namespace weft
