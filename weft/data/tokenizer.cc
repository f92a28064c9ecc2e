#include "weft/data/tokenizer.h"

namespace weft {

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  encoder()->encode(text, ids);
  return ids;
}

}  // namespace weft
