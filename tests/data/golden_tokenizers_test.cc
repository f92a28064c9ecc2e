// Every golden case of every tokenizer.json: ids with and without special tokens, and texts of ids.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "weft/base/json.h"
#include "weft/data/tokenizer_choice.h"

namespace weft {
namespace {

using Ids = std::vector<std::int32_t>;

class GoldenTokenizers : public ::testing::TestWithParam<const char*> {
 protected:
  std::filesystem::path folder() const {
    return std::filesystem::path(WEFT_SOURCE_DIR) / "tests/golden/tokenizers" / GetParam();
  }
  Json cases(const char* file) const { return read_json(folder() / file); }
  std::unique_ptr<Tokenizer> tokenizer() const { return make_tokenizer({.model = folder().string()}); }
};

TEST_P(GoldenTokenizers, encode) {
  const auto tokenizer = this->tokenizer();
  const auto encoder = tokenizer->encoder();
  const Json all = cases("cases.json");
  EXPECT_GE(all.size(), 100u);
  for (const Json& one : all) {
    const auto text = one["text"].get<std::string>();
    Ids ids;
    encoder->encode(text, ids);
    EXPECT_EQ(ids, one["ids_without"].get<Ids>()) << text;
    Ids with = tokenizer->special_before();
    with.insert(with.end(), ids.begin(), ids.end());
    const Ids after = tokenizer->special_after();
    with.insert(with.end(), after.begin(), after.end());
    EXPECT_EQ(with, one["ids_with_special"].get<Ids>()) << text;
  }
}

TEST_P(GoldenTokenizers, decode) {
  const auto tokenizer = this->tokenizer();
  for (const Json& one : cases("cases.json")) {
    EXPECT_EQ(tokenizer->decode(one["ids_without"].get<Ids>()), one["decoded"].get<std::string>());
    EXPECT_EQ(tokenizer->decode(one["ids_with_special"].get<Ids>(), SpecialTokens::skip),
              one["decoded_skipping_special"].get<std::string>());
  }
  const Json odd = cases("decode.json");
  EXPECT_GE(odd.size(), 10u);
  for (const Json& one : odd) {
    EXPECT_EQ(tokenizer->decode(one["ids"].get<Ids>()), one["decoded"].get<std::string>()) << one["ids"].dump();
    EXPECT_EQ(tokenizer->decode(one["ids"].get<Ids>(), SpecialTokens::skip),
              one["decoded_skipping_special"].get<std::string>())
        << one["ids"].dump();
  }
}

INSTANTIATE_TEST_SUITE_P(, GoldenTokenizers,
                         ::testing::Values("deepseek", "gpt2", "llama2", "llama2_metaspace", "llama3", "qwen2"),
                         [](const auto& one) { return std::string(one.param); });

}  // namespace
}  // namespace weft
