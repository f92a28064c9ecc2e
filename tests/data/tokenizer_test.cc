#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/data/temporary_folder.h"
#include "weft/base/error.h"
#include "weft/data/tokenizer_choice.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ByteTokenizer, EveryByteIsItsOwnId) {
  const auto tokenizer = make_tokenizer({"ByteTokenizer"});
  EXPECT_EQ(tokenizer->vocabulary_size(), 257);
  EXPECT_EQ(tokenizer->eod(), 256);
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  const auto ids = tokenizer->encode(bytes);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(ids[static_cast<std::size_t>(i)], i);
  EXPECT_EQ(tokenizer->decode(ids), bytes);
}

TEST(ByteTokenizer, DecodesWhatAModelMaySample) {
  const auto tokenizer = make_tokenizer({"ByteTokenizer"});
  EXPECT_EQ(tokenizer->decode(std::vector<std::int32_t>{'a', 256, 'b', 300, -1}), "ab\xef\xbf\xbd\xef\xbf\xbd");
}

TEST(NullTokenizer, ReadsNumbers) {
  const auto tokenizer = make_tokenizer({"NullTokenizer", 100});
  EXPECT_EQ(tokenizer->vocabulary_size(), 101);
  EXPECT_EQ(tokenizer->eod(), 100);
  EXPECT_THAT(tokenizer->encode("  7 99\n0\t100 "), ElementsAre(7, 99, 0, 100));
  EXPECT_TRUE(tokenizer->encode(" \n").empty());
  EXPECT_EQ(tokenizer->decode(std::vector<std::int32_t>{7, 99, 0}), "7 99 0");
}

TEST(NullTokenizer, ExplainsWhatIsNoId) {
  const auto tokenizer = make_tokenizer({"NullTokenizer", 100});
  EXPECT_THAT(message_of<UserError>([&] { tokenizer->encode("1 2 x3"); }), HasSubstr("\"x3\" at byte 4 is not one"));
  EXPECT_THAT(message_of<UserError>([&] { tokenizer->encode("1 101"); }),
              HasSubstr("token 101 at byte 2 is outside the vocabulary of 101 ids"));
  EXPECT_THAT(message_of<UserError>([&] { tokenizer->encode("-1"); }), HasSubstr("token -1 at byte 0"));
  EXPECT_THAT(message_of<UserError>([] { make_tokenizer({"NullTokenizer", 0}); }), HasSubstr("--vocab-size N"));
}

TEST(Tokenizer, UnknownTypesGetASuggestion) {
  EXPECT_THAT(
      message_of<UserError>([] { make_tokenizer({"ByteTokeniser"}); }),
      HasSubstr("unknown tokenizer type ByteTokeniser (did you mean ByteTokenizer?); there are ByteTokenizer, "));
}

}  // namespace
}  // namespace weft
