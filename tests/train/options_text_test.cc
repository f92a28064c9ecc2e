// The options as text: help, --explain, the dump, where a value came from, docs/options.md.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/train/parsed_options.h"

namespace weft {
namespace {

TEST(OptionsText, ExplainNeedsNoCorrectConfiguration) {
  const ParsedOptions run("--hidden-size 30 --explain kv-channels --explain ffn_hidden_size");
  EXPECT_EQ(run.options.explain.size(), 2u);
  EXPECT_NE(
      run.flags.explain("ffn_hidden_size").find("--ffn-hidden-size = 120\n  from      derived: 4 x hidden-size\n"),
      std::string::npos);
}

TEST(OptionsText, DumpSaysDerivedValues) {
  const std::string dump = ParsedOptions("--hidden-size 64").flags.dump();
  EXPECT_NE(dump.find("  kv_channels ..................................... 16\n"), std::string::npos) << dump;
  EXPECT_NE(dump.find("  window_size ..................................... no window\n"), std::string::npos) << dump;
  EXPECT_NE(dump.find("  pattern ......................................... [*-][*E][*E][*E]\n"), std::string::npos);
}

TEST(OptionsText, HelpHasSectionsAndChecksNothing) {
  const ParsedOptions run("--help --hidden-size 0");
  EXPECT_TRUE(run.flags.help_wanted());
  for (const char* section :
       {"\nModel\n", "\nAttention\n", "\nExperts\n", "\nOptimizer\n", "\nRefused from Megatron\n"})
    EXPECT_NE(run.flags.help().find(section), std::string::npos) << section;
}

TEST(OptionsText, AConfigFileAndTheCommandLine) {
  const auto file = std::filesystem::path(testing::TempDir()) / fmt::format("weft-options-{}.toml", getpid());
  std::ofstream(file)
      << "bf16 = true\nstories = true\n[model]\npattern = '[*-]'\nhidden_size = 64\n[optimizer]\nlr = 1e-2\n";
  const ParsedOptions run("--lr 0.5 --config " + file.string());
  std::filesystem::remove(file);
  EXPECT_EQ(run.options.model.pattern, "[*-]");
  EXPECT_EQ(run.options.dtype, DType::bf16);
  EXPECT_EQ(run.options.optimizer.lr, 0.5);
  EXPECT_EQ(run.options.data.stories, 4000000);
  EXPECT_EQ(run.flags.flag("--hidden-size").origin.text(), file.string() + ":5");
}

TEST(OptionsText, DocumentationHasWhatHelpHas) {
  for (const char* flag : {"`--rank R`", "`--world-size N`"})
    EXPECT_NE(options_markdown().find(flag), std::string::npos) << flag;
}

// To update it: WEFT_UPDATE=1 train_test --gtest_filter=OptionsText.DocumentationIsUpToDate
TEST(OptionsText, DocumentationIsUpToDate) {
  const std::string file = std::string(WEFT_SOURCE_DIR) + "/docs/options.md";
  if (std::getenv("WEFT_UPDATE")) std::ofstream(file) << options_markdown();
  std::ifstream stream(file);
  const std::string text((std::istreambuf_iterator<char>(stream)), {});
  EXPECT_EQ(text, options_markdown());
}

}  // namespace
}  // namespace weft
