// The tokens that a run reads, depending on its options.
#include "weft/train/data_source.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/data/temporary_folder.h"
#include "tests/train/parsed_options.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

TEST(Tokenizers, ALoadedModelHasNoneUnlessItIsOfBytesOrOneIsNamed) {
  const auto vocabulary = [](const char* flags, std::int64_t of_model) {
    const std::shared_ptr<const Tokenizer> found =
        tokenizer_of(ParsedOptions(std::string("--mock-data ") + flags).options, of_model);
    return found ? found->vocabulary_size() : 0;
  };
  EXPECT_EQ(vocabulary("", 257), 257);
  EXPECT_EQ(vocabulary("--hf dir", 257), 257);
  EXPECT_EQ(vocabulary("--hf dir", 256), 0);
  EXPECT_EQ(vocabulary("--hf dir", 32000), 0);
  EXPECT_EQ(vocabulary("--hf dir --tokenizer-type ByteTokenizer", 32000), 257);
  EXPECT_EQ(vocabulary("--hf dir --tokenizer-type NullTokenizer", 32000), 32000);
}

TEST(RunData, TextIsNoBytesForALoadedModelUnlessOneAsksForIt) {
  const auto refusal = [](const std::string& flags) {
    return message_of<UserError>([&] { open_run_data(ParsedOptions("--hf dir " + flags).options, 32000); });
  };
  for (const char* source : {"", "--stories 20000", "--text none.txt"}) {
    EXPECT_THAT(
        refusal(source),
        HasSubstr("the model has a tokenizer of its own with 32000 tokens, and the folder holds no tokenizer.json"));
    EXPECT_THAT(refusal(source),
                HasSubstr("use --data-path with token files made by it, or --mock-data; to train on bytes, use "
                          "--tokenizer-type ByteTokenizer"));
  }
  EXPECT_THAT(refusal("--text none.txt"), HasSubstr("--hf dir: --text none.txt would be read as one token per byte"));
  EXPECT_EQ(refusal("--mock-data --train-iters 1 --eval-iters 0"), "");
  EXPECT_EQ(refusal("--stories 20000 --tokenizer-type ByteTokenizer"), "");
}

TEST(RunData, ARunThatDoesNotValidateNeedsNothingToValidateOn) {
  const TemporaryFolder folder;
  const std::string file = folder.file("small.txt");
  std::ofstream(file) << std::string(300, 'a');
  const auto open = [&](const std::string& flags) {
    return open_run_data(ParsedOptions("--seq-length 256 --text " + file + flags).options, 257);
  };
  EXPECT_THROW(open(""), UserError);  // 15 tokens are held out
  for (const char* flags : {" --eval-iters 0", " --eval-interval 0"}) {
    const RunData data = open(flags);
    EXPECT_FALSE(data.splits.valid);
    EXPECT_THAT(data.splits.train->identity(), HasSubstr("300 tokens")) << "nothing is held out";
  }
}

}  // namespace
}  // namespace weft
