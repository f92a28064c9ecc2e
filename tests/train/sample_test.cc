#include "weft/train/sample.h"

#include <gtest/gtest.h>

#include "tests/execute/ranks.h"

namespace weft {
namespace {

TEST(Sample, BytesThatAreNoTextAreShownAsSuch) {
  EXPECT_EQ(readable("a fox, \xc3\xa9t\xc3\xa9, \xe2\x82\xac, \xf0\x9f\xa6\x8a"),
            "a fox, \xc3\xa9t\xc3\xa9, \xe2\x82\xac, \xf0\x9f\xa6\x8a");
  const std::string no = "\xef\xbf\xbd";
  EXPECT_EQ(readable("a\xffz"), "a" + no + "z");
  EXPECT_EQ(readable("a\xc3"), "a" + no) << "cut off";
  EXPECT_EQ(readable("\xc3z"), no + "z") << "no continuation";
  EXPECT_EQ(readable("\xc0\x80"), no + no) << "longer than it need be";
  EXPECT_EQ(readable("\xe0\x80\x80"), no + no + no);
  EXPECT_EQ(readable("\xed\xa0\x80"), no + no + no) << "half of a surrogate pair";
  EXPECT_EQ(readable("\xf4\x90\x80\x80"), no + no + no + no) << "beyond the last character";
}

// Plans have a fixed length, so a short text is padded with meaningless tokens.
TEST(Sample, LogitsDoNotDependOnWhatFollows) {
  RankCase c = small_case("[*E]");
  c.length = 12;
  c.config.experts.balance.capacity_factor = 1;  // in training, experts drop what exceeds it
  CpuDevice device;
  Session session(device, options_of(c, nullptr));
  session.initialise_parameters(5);
  const std::vector<std::int32_t> tokens = batch_of(c, 0, 0).tokens;
  const std::vector<double> all = session.evaluator().logits(tokens);
  for (const std::size_t length : {1, 5, 11}) {
    const std::vector<double> some = session.evaluator().logits(std::span(tokens).first(length));
    ASSERT_EQ(some.size(), length * 23);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin())) << length;
  }
}

}  // namespace
}  // namespace weft
