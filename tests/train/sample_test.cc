#include "weft/train/sample.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace weft
