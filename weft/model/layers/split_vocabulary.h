// The two ends of a model whose vocabulary tensor ranks divide: this rank has rows of embedding and head.
#pragma once

#include "weft/model/builder.h"

namespace weft {

// The rows that are here: `rows` of memory, of which `part` are rows of the vocabulary; padding follows them.
struct SplitVocabulary {
  TensorRanks ranks;
  std::int64_t rows = 0;
  Range part;
};
SplitVocabulary split_vocabulary(const ModuleBuilder& b);
// Embedding or head: [rows, hidden].
ParameterValues add_vocabulary_weight(ModuleBuilder& b, Role role);

// y = the embedding of the tokens `shift` positions further on: a lookup among the rows that are here, then the sum over
// ranks. y, dy: [tokens of the residual stream, hidden].
void add_split_lookup(ModuleBuilder& b, ParameterValues weight, ValueId tokens, int shift, ValueId y, ValueId dy);

// add_head, of several tensor ranks.
void add_split_head(ModuleBuilder& b, ValueId x, ParameterValues weight, int depth);  // split_head.cc
// add_mtp_input, of several tensor ranks.
ValueId add_split_mtp_input(ModuleBuilder& b, int depth, ValueId h, ParameterValues embedding);  // split_mtp.cc

}  // namespace weft
