// The tokens of a run, as its options ask for.
#pragma once

#include <memory>

#include "weft/data/token_source.h"
#include "weft/data/tokenizer.h"
#include "weft/train/options.h"

namespace weft {

struct RunData {
  std::shared_ptr<const Tokenizer> tokenizer;  // may be null: see tokenizer_of
  DataSplits splits;
  double letter_entropy = 0;  // nats per token when guessing by letter frequency; 0 if unknown
};
// `vocabulary`: of the model; 0 if the tokenizer decides. UserError for text without a tokenizer.
RunData open_run_data(const TrainOptions& options, std::int64_t vocabulary);
// Of a loaded model: what the flags name, or else what its folder holds, which is read only if the run needs it; null where
// neither is there, unless the model's ids are bytes.
std::shared_ptr<const Tokenizer> tokenizer_of(const TrainOptions& options, std::int64_t vocabulary);

}  // namespace weft
