// Everything in examples/ is taken by the commands it is for.
#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "tests/apps/weft_process.h"
#include "weft/base/json.h"

namespace weft {
namespace {

const std::filesystem::path examples = std::filesystem::path(WEFT_SOURCE_DIR) / "examples";

std::vector<std::string> names_in(const std::filesystem::path& folder, bool folders) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (folders == entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Json check(const Words& words) { return parse_json(expect_done(Words{"check", "--json"} + words), "check"); }

TEST(Examples, EveryFamilyHasASmallAndAFullSizeOne) {
  const std::vector<std::string> small = names_in(examples, false), full = names_in(examples / "full_size", true);
  for (const char* family : {"llama", "mixtral", "qwen3_moe", "deepseek_v3", "deepseek_v32", "gpt_oss", "mamba2",
                             "nemotron_h", "qwen3_next"}) {
    EXPECT_THAT(small, ::testing::Contains(::testing::StartsWith(family)));
    EXPECT_THAT(full, ::testing::Contains(::testing::StartsWith(family)));
  }
}

class SmallExample : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Examples, SmallExample, ::testing::ValuesIn(names_in(examples, false)),
                         [](const auto& name) { return name.param.substr(0, name.param.find('.')); });

TEST_P(SmallExample, TrainsAStep) {
  const std::string file = (examples / GetParam()).string();
  TemporaryFolder folder;
  EXPECT_TRUE(check({"--config", file}).at("faults").empty());
  EXPECT_THAT(expect_done({"train",
                           "--config",
                           file,
                           "--train-iters",
                           "1",
                           "--eval-iters",
                           "0",
                           "--stories",
                           "100000",
                           "--seq-length",
                           "32",
                           "--micro-batch-size",
                           "1",
                           "--global-batch-size",
                           "8",  // two micro-batches, which the weave pairs
                           "--lr-warmup-iters",
                           "0",
                           "--sample-length",
                           "4",
                           "--timeline",
                           folder.file("t.html")}),
              ::testing::HasSubstr("trained 1 iterations"));
}

class FullSizeExample : public ::testing::TestWithParam<std::pair<std::string, double>> {};
INSTANTIATE_TEST_SUITE_P(Examples, FullSizeExample,
                         ::testing::Values(std::pair("llama_8b", 8.03e9), std::pair("mixtral_8x7b", 46.7e9),
                                           std::pair("qwen3_moe_30b_a3b", 30.5e9), std::pair("deepseek_v3", 671.0e9),
                                           std::pair("deepseek_v32", 671.9e9), std::pair("gpt_oss_20b", 20.9e9),
                                           std::pair("mamba2_2.7b", 2.70e9), std::pair("nemotron_h_8b", 8.10e9),
                                           std::pair("nemotron_h_30b_a3b", 31.6e9),
                                           std::pair("qwen3_next_80b_a3b", 79.7e9)),
                         [](const auto& model) {
                           std::string name = model.param.first;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

TEST_P(FullSizeExample, HasThePublishedSize) {
  const auto& [name, parameters] = GetParam();
  const std::string folder = (examples / "full_size" / name).string();
  const Words words = {"--hf", folder, "--seq-length", "4096", "--micro-batch-size", "1", "--bf16"};
  const Json report = check(words);
  EXPECT_NEAR(report.at("parameters").get<double>() / parameters, 1, 0.005) << report.at("parameters");
  EXPECT_TRUE(report.at("faults").empty());
  EXPECT_THAT(expect_done(Words{"plan"} + words), ::testing::StartsWith("plan "));
}

TEST(Examples, NoFullSizeOneIsForgotten) { EXPECT_EQ(names_in(examples / "full_size", true).size(), 10u); }

}  // namespace
}  // namespace weft
