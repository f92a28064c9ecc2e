// Token files that are damaged, foreign or not there. Each is refused before the first step, by name.
#include <cstring>
#include <filesystem>

#include "tests/apps/weft_process.h"
#include "weft/base/file.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

// Offsets in an .idx file (docs/data.md).
constexpr std::size_t version_at = 9, type_at = 17, sequences_at = 18, boundaries_at = 26, lengths_at = 34;

class DataFiles : public ::testing::Test {
 protected:
  DataFiles() {
    expect_done({"tokenize", "--stories", "8K", "--output-prefix", good_});
    index_ = read_file(good_ + ".idx");
    tokens_ = read_file(good_ + ".bin");
  }

  template <class T>
  static std::string with(std::string bytes, std::size_t at, T value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
    return bytes;
  }
  template <class T>
  static T at(const std::string& bytes, std::size_t where) {
    T value;
    std::memcpy(&value, bytes.data() + where, sizeof value);
    return value;
  }

  // The run is refused while the data is opened, and the metrics file it asks for is not begun.
  void expect_bad(const std::string& index, const std::string& tokens, std::initializer_list<std::string> parts) {
    write_file_atomically(bad_ + ".idx", index);
    write_file_atomically(bad_ + ".bin", tokens);
    expect_refused(Words{"train"} + tiny_run + Words{"--data-path", bad_, "--metrics", folder_.file("m.jsonl")}, parts);
    EXPECT_FALSE(std::filesystem::exists(folder_.file("m.jsonl")));
  }

  TemporaryFolder folder_;
  std::string good_ = folder_.file("good"), bad_ = folder_.file("bad"), index_, tokens_;
};

TEST_F(DataFiles, DamagedIndex) {
  const std::string idx = bad_ + ".idx";
  expect_bad("X" + index_.substr(1), tokens_, {idx + " does not begin with \"MMIDIDX\": it is not the index of"});
  expect_bad("", tokens_, {idx + " is truncated: it has 0 bytes, and the header alone takes 34"});
  expect_bad(index_.substr(0, 20), tokens_, {idx + " is truncated: it has 20 bytes, and the header alone takes 34"});
  expect_bad(index_.substr(0, index_.size() - 8), tokens_,
             {idx + " is truncated: ", "document boundaries it announces"});
  expect_bad(index_ + "extra", tokens_, {idx + " has 5 bytes after its arrays"});
  expect_bad(with<std::uint64_t>(index_, version_at, 2), tokens_, {idx + " has version 2; Weft reads version 1"});
  expect_bad(with<std::uint8_t>(index_, type_at, 6), tokens_, {idx + " holds float64 (type code 6), not tokens"});
  expect_bad(with<std::uint8_t>(index_, type_at, 9), tokens_, {idx + " has the unknown type code 9"});
}

TEST_F(DataFiles, CountsThatDoNotMatch) {
  const std::string idx = bad_ + ".idx";
  const auto sequences = at<std::uint64_t>(index_, sequences_at), boundaries = at<std::uint64_t>(index_, boundaries_at);
  expect_bad(with<std::uint64_t>(index_, sequences_at, sequences + 1), tokens_, {idx + " is truncated: "});
  expect_bad(with<std::uint64_t>(index_, sequences_at, ~std::uint64_t{0} / 12 + 1), tokens_, {idx + " is truncated: "});
  expect_bad(with<std::uint64_t>(index_, boundaries_at, boundaries - 1), tokens_, {idx + " has 8 bytes after"});
  expect_bad(with<std::int32_t>(index_, lengths_at, -3), tokens_, {idx + ": sequence 0 has length -3"});
  const auto length = at<std::int32_t>(index_, lengths_at);
  expect_bad(with<std::int32_t>(index_, lengths_at, length + 1), tokens_, {idx + ": sequence 1 starts at byte "});
  expect_bad(with<std::int64_t>(index_, index_.size() - 8, 1), tokens_, {idx + ": document "});
  expect_bad(with<std::int64_t>(index_, index_.size() - 8 * boundaries, 1), tokens_,
             {idx + ": document 0 does not start at sequence 0"});
}

TEST_F(DataFiles, TokenFileOfAnotherLength) {
  const std::string bin = bad_ + ".bin";
  for (const std::string& tokens : {tokens_.substr(0, tokens_.size() - 2), tokens_ + "xy", std::string()})
    expect_bad(index_, tokens,
               {bin + " has " + std::to_string(tokens.size()) + " bytes, but bad.idx describes " +
                    std::to_string(tokens_.size()),
                "one of the two files is damaged or belongs to another data set"});
}

TEST_F(DataFiles, TokensOutsideTheVocabulary) {
  std::string tokens;
  for (std::size_t i = 0; i < tokens_.size() / 2; ++i) tokens += std::string("\x2c\x01", 2);  // 300
  write_file_atomically(bad_ + ".idx", index_);
  write_file_atomically(bad_ + ".bin", tokens);
  const Outcome outcome = run_weft(Words{"train"} + tiny_run + Words{"--data-path", bad_});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, ::testing::StartsWith("weft: " + bad_ + ".bin: token 300 at position "));
  EXPECT_THAT(outcome.err, HasSubstr("is outside the vocabulary of 257 ids; use the tokenizer or the --vocab-size that "
                                     "the file was written with"));
  // The same file with a vocabulary that has the token.
  expect_done(Words{"train"} + tiny_run + Words{"--data-path", bad_, "--vocab-size", "301"});
}

TEST_F(DataFiles, FilesThatAreNotThere) {
  const Words train = Words{"train"} + tiny_run;
  const std::string none = folder_.file("none");
  expect_refused(train + Words{"--data-path", none}, {"cannot read " + none + ".idx: No such file or directory"});
  std::filesystem::remove(good_ + ".bin");
  expect_refused(train + Words{"--data-path", good_}, {"cannot read " + good_ + ".bin: No such file or directory"});
  expect_refused(train + Words{"--data-path", good_ + ".bin"},
                 {"is a file of a data set; give the prefix that its two files share: " + good_});
  expect_refused(train + Words{"--data-path", "0.3", good_, "0.7"}, {"--data-path", "a weight before each prefix"});
  expect_refused(train + Words{"--text", none}, {"cannot read " + none + ": No such file or directory"});
  write_file_atomically(folder_.file("short.txt"), "hi");
  expect_refused(train + Words{"--text", folder_.file("short.txt")},
                 {"short.txt", "too few for one sample of 16 + 1; use a smaller --seq-length, or more text"});
}

TEST_F(DataFiles, TokenizeLeavesNothingBehind) {
  const std::size_t before = folder_.entries();
  const std::string out = folder_.file("out");
  write_file_atomically(folder_.file("in.txt"), "1 2 999");
  expect_refused({"tokenize", "--input", folder_.file("in.txt"), "--output-prefix", out, "--tokenizer-type",
                  "NullTokenizer", "--vocab-size", "10"},
                 {"in.txt, document at line 1: token 999 at byte 4 is outside the vocabulary of 11 ids"});
  write_file_atomically(folder_.file("in.jsonl"), "{\"text\": \"a\"}\n{\"text\": 7}\n");
  expect_refused({"tokenize", "--input", folder_.file("in.jsonl"), "--output-prefix", out},
                 {"in.jsonl:2: no text under the key \"text\""});
  expect_refused({"tokenize", "--input", folder_.file("in.txt"), "--output-prefix", folder_.file("none/out")},
                 {"none/out.bin: open: No such file or directory (does the folder exist?)"});
  EXPECT_EQ(folder_.entries(), before + 2);
}

}  // namespace
}  // namespace weft
