#include "weft/data/tokenizers/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/data/temporary_folder.h"
#include "weft/base/error.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> matches(const char* pattern, std::string_view text,
                                 RegexDialect dialect = RegexDialect::oniguruma) {
  const Regex regex(pattern, dialect, "x");
  RegexScratch scratch;
  std::vector<std::string> found;
  Regex::Match match;
  for (std::size_t at = 0; at < text.size() && regex.search(text, at, scratch, match); at = match.end) {
    if (match.begin == match.end) break;
    found.emplace_back(text.substr(match.begin, match.end - match.begin));
  }
  return found;
}

TEST(Regex, ClassesAreUnicodes) {
  EXPECT_THAT(matches("\\p{L}+", "ab1\xc3\xa9\xe6\x97\xa5"), ElementsAre("ab", "\xc3\xa9\xe6\x97\xa5"));
  EXPECT_THAT(matches("\\s",
                      "a\xe1\xa0\x8e"
                      "b\xc2\x85"),
              ElementsAre("\xc2\x85"))
      << "U+180E is no space";
  EXPECT_THAT(matches("[^\\s]+",
                      "a\xe3\x80\x80"
                      "b"),
              ElementsAre("a", "b"));
  EXPECT_THAT(matches("\\w+", "e\xcc\x81_1-2"), ElementsAre("e\xcc\x81_1", "2")) << "marks belong to words";
  EXPECT_THAT(matches("\\w+",
                      "a\xe2\x80\x8d"
                      "b"),
              ElementsAre("a", "b"));
  EXPECT_THAT(matches("\\w+",
                      "a\xe2\x80\x8d"
                      "b",
                      RegexDialect::fancy),
              ElementsAre("a\xe2\x80\x8d"
                          "b"));
  EXPECT_THAT(matches("\\d+", "1\xd9\xa3\xc2\xbd"), ElementsAre("1\xd9\xa3"));
  EXPECT_THAT(matches("[\\S--]+", "a- b"), ElementsAre("a-", "b"));
  EXPECT_THAT(matches("\\p{Han}+", "\xe6\x97\xa5\xe3\x81\x82"), ElementsAre("\xe6\x97\xa5"));
  EXPECT_THAT(matches("\\p{Letter}+", "a1"), ElementsAre("a"));
}

TEST(Regex, RepetitionsMeanWhatTheOtherEnginesMean) {
  EXPECT_THAT(matches("\\p{N}{1,3}+", "12345"), ElementsAre("12345")) << "once or more, to Oniguruma";
  EXPECT_THAT(matches("\\p{N}{1,3}+", "12345", RegexDialect::fancy), ElementsAre("123", "45"));
  EXPECT_THAT(matches("(?:ab){1,2}+c", "ababababc"), ElementsAre("ababababc"));
  EXPECT_THAT(matches("a{,2}b", "aaab"), ElementsAre("aab"));
  EXPECT_THAT(matches("\\s+(?!\\S)|\\s+", "a   b"), ElementsAre("  ", " "));
  EXPECT_THAT(matches("a$", "a\na", RegexDialect::oniguruma), ElementsAre("a", "a"));
  EXPECT_THAT(matches("a$", "a\na", RegexDialect::fancy), ElementsAre("a"));
  EXPECT_THAT(matches("(?m:a.b)", "a\nb"), ElementsAre("a\nb")) << "Ruby's m";
}

TEST(Regex, ClassesInsideClasses) {
  EXPECT_THAT(matches("[a-z&&[^aeiou]]+", "hello"), ElementsAre("h", "ll"));
  EXPECT_THAT(matches("[\\p{L}&&[^\\p{Han}]]+", "a\xe6\x97\xa5\xc3\xa9"), ElementsAre("a", "\xc3\xa9"));
  EXPECT_THAT(matches("[^a-z&&[^x]]+", "abx1"), ElementsAre("x1"));
  EXPECT_THAT(matches("[a[bc]]+", "abcd"), ElementsAre("abc"));
  EXPECT_THAT(matches("[^a[bc]]+", "abcd["), ElementsAre("d["));
  EXPECT_THAT(matches("[]a]+", "a]b"), ElementsAre("a]"));
  EXPECT_THAT(matches("[[:alpha:]_]+", "a_1"), ElementsAre("a_"));
}

TEST(Regex, WrongOnesAreRefused) {
  const auto error = [](const char* pattern) {
    return message_of<UserError>([&] { Regex(pattern, RegexDialect::oniguruma, "file: pattern"); });
  };
  EXPECT_THAT(error("(a"), HasSubstr("file: pattern: the pattern (a cannot be used: missing closing parenthesis"));
  EXPECT_THAT(error("a)"), HasSubstr("a ')' without its '('"));
  EXPECT_THAT(error("[a"), HasSubstr("a class without its ]"));
  EXPECT_THAT(error("\\p{Nonsense}"), HasSubstr("unknown property"));
  EXPECT_THAT(error("a\\"), HasSubstr("ends after \\"));
}

TEST(Regex, GivesUpInTime) {
  const Regex regex("(a|aa)*[bc]|(?:(x+x+)+y)", RegexDialect::fancy, "x");
  RegexScratch scratch;
  Regex::Match match;
  EXPECT_THAT(message_of<UserError>([&] { regex.search(std::string(50, 'x') + 'z', 0, scratch, match); }),
              HasSubstr("x: its pattern cannot split this text at byte 0: match limit exceeded"));
}

}  // namespace
}  // namespace weft
