#include "weft/data/tokenizer.h"

#include <array>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/data/byte_tokenizer.h"
#include "weft/data/null_tokenizer.h"

namespace weft {

std::unique_ptr<Tokenizer> make_tokenizer(std::string_view type, std::int64_t vocabulary_size) {
  const std::array<std::string, 2> known = {"ByteTokenizer", "NullTokenizer"};
  if (type == known[0]) return std::make_unique<ByteTokenizer>();
  if (type == known[1]) return std::make_unique<NullTokenizer>(vocabulary_size);
  const std::string near = nearest_name(type, known);
  throw UserError("unknown tokenizer type {}{}; there are {}", type,
                  near.empty() ? "" : " (did you mean " + near + "?)", join(known, ", "));
}

}  // namespace weft
