// Documents that share a sample, told apart by the token that ends each of them.
#pragma once

#include <memory>

#include "weft/data/token_source.h"

namespace weft {

struct DocumentRules {
  bool separate = false;         // marks where they begin, so that no layer looks from one into another
  bool reset_positions = false;  // counts positions from where they begin
  bool skip_ends = false;        // the token after an end does not count in the loss
  bool any() const { return separate || reset_positions || skip_ends; }
};

// Marks the documents of a micro-batch whose samples are `batch.length` tokens. A document's end belongs to it.
void mark_documents(MicroBatch& batch, std::int32_t end, const DocumentRules& rules);

// The same tokens, with documents marked.
std::unique_ptr<TokenSource> with_documents(std::unique_ptr<TokenSource> source, std::int32_t end,
                                            const DocumentRules& rules);

}  // namespace weft
