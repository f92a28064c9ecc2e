// Tokenizers that are read from files: training, sampling, token files, and a loaded model's own.
#include <filesystem>

#include "tests/apps/weft_process.h"
#include "tests/data/temporary_folder.h"
#include "weft/base/file.h"
#include "weft/data/stories.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

const Words short_run = {"--seq-length", "16", "--micro-batch-size", "2", "--train-iters", "2",
                         "--eval-iters", "1",  "--threads",          "1", "--device",      "cpu"};
const Words small = {"--pattern", "*E*E", "--hidden-size", "16", "--num-attention-heads", "2", "--num-experts", "4"};

class TokenizerFiles : public testing::Test {
 protected:
  void SetUp() override { write_file_atomically(text_, write_stories(1, 20000)); }
  TemporaryFolder folder_;
  std::string text_ = folder_.file("text");
};

TEST_F(TokenizerFiles, TrainAndSample) {
  const Words tokenizers[] = {
      {"--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", golden("tokenizers/llama3/tokenizer.json")},
      {"--tokenizer-type", "GPT2BPETokenizer", "--tokenizer-model", golden("tokenizers/gpt2")},
      {"--tokenizer-type", "Llama2Tokenizer", "--tokenizer-model", golden("tokenizers/sentencepiece/bpe.model")},
      {"--tokenizer-type", "TikTokenizer", "--tokenizer-model", golden("tokenizers/tiktoken/megatron.json"),
       "--tiktoken-num-special-tokens", "20"},
      {"--tokenizer-model", golden("tokenizers/sentencepiece/unigram.model")}};
  for (const Words& tokenizer : tokenizers) {
    const std::string log = expect_done(Words{"train", "--text", text_, "--sample", "The cat", "--sample-length", "4"} +
                                        small + short_run + tokenizer);
    EXPECT_THAT(log, HasSubstr("--- The cat[")) << tokenizer[1];
    EXPECT_THAT(log, HasSubstr("trained 2 iterations")) << tokenizer[1];
  }
}

TEST_F(TokenizerFiles, MakeTokenFilesForTheSameRun) {
  const Words tokenizer = {"--tokenizer-model", golden("tokenizers/qwen2/tokenizer.json")};
  const std::string data = folder_.file("data");
  expect_done(Words{"tokenize", "--input", text_, "--output-prefix", data, "--append-eod"} + tokenizer);
  const Words run = Words{"train", "--data-path", data, "--eod-mask-loss"} + small + short_run + tokenizer;
  EXPECT_THAT(expect_done(run), HasSubstr("trained 2 iterations"));
  EXPECT_THAT(expect_done(run + Words{"--ranks", "2"}), HasSubstr("trained 2 iterations"));
}

TEST_F(TokenizerFiles, ALoadedModelHasItsOwn) {
  const std::string model = folder_.file("model");
  const Words tokenizer = {"--tokenizer-model", golden("tokenizers/llama3")};
  expect_done(Words{"train", "--text", text_, "--save-hf", model} + small + short_run + tokenizer);
  EXPECT_EQ(read_file(model + "/tokenizer.json"), read_file(golden("tokenizers/llama3/tokenizer.json")));
  std::filesystem::remove(model + "/tokenizer.json");
  const Words run =
      Words{"train", "--hf", model, "--text", text_, "--sample", "The cat", "--sample-length", "4"} + short_run;
  expect_refused(run, {"the folder holds no tokenizer.json or tokenizer.model. Name it with --tokenizer-model"});
  EXPECT_THAT(expect_done(run + tokenizer), HasSubstr("--- The cat["));
  std::filesystem::copy_file(golden("tokenizers/llama3/tokenizer.json"), model + "/tokenizer.json");
  EXPECT_THAT(expect_done(run), HasSubstr("--- The cat["));
  write_file_atomically(model + "/tokenizer.json", read_file(model + "/tokenizer.json").substr(0, 10000));
  expect_refused(run, {model + "/tokenizer.json: not valid JSON"});
}

TEST_F(TokenizerFiles, WhatIsWrongIsToldBeforeAnythingIsDone) {
  const Words run = Words{"train", "--text", text_} + small + short_run;
  expect_refused(run + Words{"--tokenizer-type", "HuggingFaceTokenizer"},
                 {"--tokenizer-type HuggingFaceTokenizer: needs --tokenizer-model PATH, its file"});
  expect_refused(run + Words{"--tokenizer-model", folder_.file("none.json")}, {"none.json: No such file or directory"});
  expect_refused(
      run + Words{"--tokenizer-type", "SentencePieceTokenizer", "--tokenizer-model", golden("tokenizers/gpt2")},
      {"tokenizer.json: not a SentencePiece model"});
  expect_refused(run + Words{"--tokenizer-type", "GPT2BPETokenizer"}, {"--vocab-file vocab.json and --merge-file"});
  write_file_atomically(text_, "bad \xff" + std::string(1000, 'x'));
  expect_refused(run + Words{"--tokenizer-model", golden("tokenizers/gpt2")},
                 {text_ + ": the text is not UTF-8: byte 4 (0xff)"});
}

}  // namespace
}  // namespace weft
