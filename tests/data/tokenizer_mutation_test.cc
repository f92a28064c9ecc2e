// Damaged tokenizer files: whatever bytes change, a file is read or refused, in time and memory that its size bounds; what was
// read encodes and decodes without a fault.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/checkpoint/mutations.h"
#include "tests/data/small_tokenizers.h"
#include "weft/base/error.h"
#include "weft/data/tokenizers/hugging_face.h"
#include "weft/data/tokenizers/sentencepiece.h"
#include "weft/data/tokenizers/tiktoken.h"

namespace weft {
namespace {

// An encoder takes 2 MiB for words that it has met; the tables of normal forms less than 1 MiB. A JSON value takes 16 bytes,
// an empty object 80; patterns are compiled to machine code.
constexpr MemoryBound bound = {.per_byte = 1000, .fixed = 12 << 20};

void use(const Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  try {
    tokenizer.encoder()->encode("It's 12 <s>caf\xc3\xa9</s>\xe6\x97\xa5 \xe2\x96\x81\n\n  x", ids);
  } catch (const UserError&) {  // a pattern may need too many steps
  }
  for (const std::int32_t id : ids) ASSERT_TRUE(id >= 0 && id < tokenizer.vocabulary_size()) << id;
  for (std::int32_t id = -1; id <= std::min<std::int64_t>(tokenizer.vocabulary_size(), 300); ++id) ids.push_back(id);
  for (const SpecialTokens special : {SpecialTokens::keep, SpecialTokens::skip}) try {
      tokenizer.decode(ids, special);
    } catch (const UserError&) {  // replacements may grow without bound
    }
}

void read_json_file(const std::string& bytes) { use(*parse_hugging_face_tokenizer(bytes, "x", std::nullopt)); }
void read_model(const std::string& bytes) { use(*parse_sentencepiece(bytes, "x")); }
void read_ranks(const std::string& bytes) { use(*parse_tiktoken(bytes, "x", {})); }

TEST(Mutation, damaged_tokenizer_json) {
  const std::vector<std::string> tokens = {
      "{",         "}",      "[",      "]",          ",",  "\"",      "\\",           "null",
      "true",      "-1",     "1e9",    "4294967296", "[]", "{}",      "\"BPE\"",      "\"a\"",
      "\"type\":", "\\p{L}", "(?:",    "{1,99}",     "+",  "\\u0000", "\"Sequence\"", "\"ByteLevel\"",
      "\"NFC\"",   "\xff",   "\"id\":"};
  try_mutations(
      {{"bytes", small_byte_level_json(), read_json_file}, {"characters", small_metaspace_json(), read_json_file}},
      tokens, bound, 3000);
}

TEST(Mutation, damaged_sentencepiece_models) {
  const std::vector<std::string> tokens = {
      std::string("\0", 1),   "\n",   "\x12",         "\x1a",   "\x15",   "\x18",
      "\xff\xff\xff\xff\x0f", "\x80", "\xe2\x96\x81", "<0x00>", "\n\x03", "\x10\x02"};
  try_mutations({{"bpe", small_sentencepiece(true), read_model}, {"unigram", small_sentencepiece(false), read_model}},
                tokens, bound, 3000);
}

TEST(Mutation, damaged_tiktoken_files) {
  const std::vector<std::string> tokens = {" ",         "\n", "=", "==",   "AA==",       "-1",  "99999999999",
                                           "\"rank\":", "[",  "{", "\xff", "4294967296", "null"};
  try_mutations({{"plain", small_tiktoken(), read_ranks}, {"json", small_tiktoken_json(), read_ranks}}, tokens, bound,
                1000);
}

}  // namespace
}  // namespace weft
