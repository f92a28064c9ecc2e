// SentencePiece models and tiktoken files, against those libraries (tests/golden/tokenizers/make.py).
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/json.h"
#include "weft/data/tokenizer_choice.h"

namespace weft {
namespace {

using Ids = std::vector<std::int32_t>;

std::filesystem::path golden(const std::string& file) {
  return std::filesystem::path(WEFT_SOURCE_DIR) / "tests/golden/tokenizers" / file;
}

// Cases with a text are encoded, all are decoded.
void expect_cases(const Tokenizer& tokenizer, const std::string& file) {
  const auto encoder = tokenizer.encoder();
  const Json all = read_json(golden(file));
  EXPECT_GE(all.size(), 200u);
  for (const Json& one : all) {
    const Ids expected = one["ids"].get<Ids>();
    if (one.contains("text")) {
      Ids ids;
      encoder->encode(one["text"].get<std::string>(), ids);
      EXPECT_EQ(ids, expected) << one["text"].dump();
    }
    EXPECT_EQ(tokenizer.decode(expected), one["decoded"].get<std::string>()) << one["ids"].dump();
  }
}

class GoldenSentencePiece : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenSentencePiece, ids_and_texts) {
  const std::string name = std::string("sentencepiece/") + GetParam();
  for (const char* type : {"SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer", ""}) {
    const auto tokenizer = make_tokenizer({.type = type, .model = golden(name + ".model")});
    EXPECT_EQ(tokenizer->eod(), 2);
    if (*type == 'S') expect_cases(*tokenizer, name + ".json");
  }
}

INSTANTIATE_TEST_SUITE_P(, GoldenSentencePiece, ::testing::Values("bpe", "bpe_suffix", "unigram", "unigram_bytes"),
                         [](const auto& one) { return std::string(one.param); });

TEST(GoldenTiktoken, MegatronsJson) {
  const auto tokenizer = make_tokenizer(
      {.type = "TikTokenizer", .model = golden("tiktoken/megatron.json"), .tiktoken_num_special_tokens = 20});
  EXPECT_EQ(tokenizer->eod(), 2);
  expect_cases(*tokenizer, "tiktoken/megatron_cases.json");
  const auto standard = make_tokenizer({.model = golden("tiktoken/megatron.json")});
  EXPECT_EQ(standard->vocabulary_size(), tokenizer->vocabulary_size() + 980) << "1000 special tokens";
  EXPECT_EQ(standard->encode("</s>a"), (Ids{2, 1000 + 'a'}));
  const auto cut = make_tokenizer({.vocab_size = 1300, .model = golden("tiktoken/megatron.json")});
  EXPECT_EQ(cut->vocabulary_size(), 1300);
}

TEST(GoldenTiktoken, SpecialTokensHaveNames) {
  TokenizerChoice choice{.type = "TikTokenizer", .model = golden("tiktoken/megatron.json")};
  choice.special_tokens = {"<mine>", "<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>"};
  const auto tokenizer = make_tokenizer(choice);
  EXPECT_EQ(tokenizer->encode("a<mine><SPECIAL_8>"), (Ids{1000 + 'a', 0, 8}));
  EXPECT_EQ(tokenizer->eod(), 3);
  choice.special_tokens.pop_back();
  EXPECT_THROW(make_tokenizer(choice), UserError) << "<sep> is missing";
}

TEST(GoldenTiktoken, PlainText) {
  const auto tokenizer = make_tokenizer({.model = golden("tiktoken/plain.tiktoken")});
  expect_cases(*tokenizer, "tiktoken/plain_cases.json");
  EXPECT_EQ(tokenizer->eod(), tokenizer->vocabulary_size() - 1);
}

}  // namespace
}  // namespace weft
