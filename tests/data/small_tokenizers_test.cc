// The small files are what they seem: each is read, and each of its parts does something.
#include "tests/data/small_tokenizers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/data/tokenizers/hugging_face.h"
#include "weft/data/tokenizers/sentencepiece.h"
#include "weft/data/tokenizers/tiktoken.h"

namespace weft {
namespace {

using ::testing::ElementsAre;

TEST(SmallTokenizers, AreRead) {
  const auto bytes = parse_hugging_face_tokenizer(small_byte_level_json(), "x", std::nullopt);
  EXPECT_THAT(bytes->encode("CAFE <s> 12"), ElementsAre(32, 258, 261, 32, 260));
  EXPECT_THAT(bytes->special_before(), ElementsAre(261));
  const auto metaspace = parse_hugging_face_tokenizer(small_metaspace_json(), "x", std::nullopt);
  EXPECT_THAT(metaspace->encode("ca b"), ElementsAre(264, 259, 3 + 'b'));
  EXPECT_EQ(metaspace->decode(metaspace->encode("ca b")), "ca b");
  EXPECT_EQ(metaspace->eod(), 2);
  const auto bpe = parse_sentencepiece(small_sentencepiece(true), "x");
  EXPECT_THAT(bpe->encode("cafx1"), ElementsAre(261, 4 + 'e', 266, 3)) << "a rule makes e of a";
  EXPECT_EQ(parse_sentencepiece(small_sentencepiece(false), "x")->decode(std::vector<std::int32_t>{5, 3}), "cx1");
  EXPECT_THAT(parse_tiktoken(small_tiktoken(), "x", {})->encode("caf"), ElementsAre(257));
  EXPECT_THAT(parse_tiktoken(small_tiktoken_json(), "x", {})->encode("ca</s>"), ElementsAre(1256, 2));
}

}  // namespace
}  // namespace weft
