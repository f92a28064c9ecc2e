#include "weft/data/tokenizers/normal_form.h"

#include <gtest/gtest.h>

#include "weft/data/tokenizers/normalizer.h"
#include "weft/data/tokenizers/utf8.h"

namespace weft {
namespace {

std::string text(std::u32string_view characters) {
  std::string result;
  for (char32_t c : characters) append_character(result, c);
  return result;
}
std::string form(Form form, std::u32string_view characters) { return NormalForm(form).apply(text(characters)); }

TEST(NormalForm, ComposesAndDecomposes) {
  EXPECT_EQ(form(Form::nfc, U"ae\u0301b"), text(U"a\u00e9b"));
  EXPECT_EQ(form(Form::nfd, U"a\u00e9b"), text(U"ae\u0301b"));
  EXPECT_EQ(form(Form::nfc, U"\u212a\u2126"), text(U"K\u03a9")) << "singletons";
  EXPECT_EQ(form(Form::nfc, U"\u0958"), text(U"\u0915\u093c")) << "excluded from composition";
  EXPECT_EQ(form(Form::nfkc, U"\ufb01\uff21\u00bd"), text(U"fiA1\u20442"));
  EXPECT_EQ(form(Form::nfc, U"\ufb01\uff21\u00bd"), text(U"\ufb01\uff21\u00bd"));
  EXPECT_EQ(form(Form::nfkd, U"\u1e9b\u0323"), text(U"s\u0323\u0307"));
  EXPECT_EQ(form(Form::nfkc, U"\u1e9b\u0323"), text(U"\u1e69"));
}

TEST(NormalForm, OrdersMarks) {
  EXPECT_EQ(form(Form::nfd, U"q\u0307\u0323"), text(U"q\u0323\u0307"));
  EXPECT_EQ(form(Form::nfc, U"D\u0307\u0323"), text(U"\u1e0c\u0307"));
  EXPECT_EQ(form(Form::nfc, U"a\u0315\u0300\u05ae\u0062"), text(U"\u00e0\u05ae\u0315b"));
  EXPECT_EQ(form(Form::nfc, U"\u0301\u0301a"), text(U"\u0301\u0301a")) << "marks without a letter";
  EXPECT_EQ(form(Form::nfc, U"a\u0300\u0300"), text(U"\u00e0\u0300"));
}

TEST(NormalForm, Hangul) {
  EXPECT_EQ(form(Form::nfd, U"\ud55c\uae00"), text(U"\u1112\u1161\u11ab\u1100\u1173\u11af"));
  EXPECT_EQ(form(Form::nfc, U"\u1112\u1161\u11ab\u1100\u1173\u11af"), text(U"\ud55c\uae00"));
  EXPECT_EQ(form(Form::nfc, U"\uac00\u11a8"), text(U"\uac01"));
  EXPECT_EQ(form(Form::nfc, U"\uac01\u11a8"), text(U"\uac01\u11a8")) << "has a last consonant already";
}

TEST(NormalForm, LowerCase) {
  EXPECT_EQ(Lowercase().apply(text(U"AZ\u00c4\u0130\u03a3\u1e9e")), text(U"az\u00e4i\u0307\u03c3\u00df"));
}

TEST(Utf8, FindsWhatIsNotValid) {
  EXPECT_EQ(first_invalid_utf8("plain, long enough for eight \xc3\xa9 \xf0\x9f\x98\x80"), std::string::npos);
  for (const char* bad : {"\x80", "\xc0\x80", "\xc3", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf5\x80"})
    EXPECT_EQ(first_invalid_utf8(std::string("12345678") + bad), 8u);
  const std::string one(replacement_character);
  EXPECT_EQ(with_replacements("a\xf0\x9f\x98z\xff\xe4\xb8"), "a" + one + "z" + one + one);
  EXPECT_EQ(with_replacements("\xed\xa0\x80"), one + one + one);
}

}  // namespace
}  // namespace weft
