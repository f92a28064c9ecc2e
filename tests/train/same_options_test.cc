// The message of a rank that was started with other options than rank 0. Whole runs: tests/apps/tcp_ranks_test.cc.
#include "weft/train/same_options.h"

#include <gtest/gtest.h>

#include "weft/train/options.h"

namespace weft {
namespace {

using Lines = std::vector<std::string>;

TEST(SameOptions, SaysWhichDiffers) {
  const Lines first{"--bf16 true", "--clip-grad 1", "--hf "};
  EXPECT_EQ(difference_of_options(first, first, 3), "");
  EXPECT_EQ(difference_of_options(first, {"--bf16 true", "--clip-grad 0.5", "--hf "}, 3),
            "--clip-grad is 0.5 on rank 3 and 1 on rank 0: start all ranks with the same options");
  EXPECT_EQ(difference_of_options(first, {"--bf16 true", "--clip-grad 1", "--hf there"}, 1),
            "--hf is there on rank 1 and not given on rank 0: start all ranks with the same options");
  const char* versions = "ranks 2 and 0 run different versions of weft: start the same one everywhere";
  EXPECT_EQ(difference_of_options(first, {"--bf16 true", "--clip-gradient 1", "--hf "}, 2), versions);
  EXPECT_EQ(difference_of_options(first, {"--bf16 true", "--clip-grad 1"}, 2), versions);
}

Lines lines_of(const Lines& words) {
  TrainOptions options;
  FlagTable flags("");
  add_train_flags(flags, options);
  flags.apply(flags.scan(words));
  return options_in_common(flags);
}

TEST(SameOptions, FilesMayLieElsewhereAndOnlyTheFirstRankDraws) {
  const auto differ = [](const Lines& first, const Lines& own) {
    return difference_of_options(lines_of(first), lines_of(own), 1);
  };
  EXPECT_EQ(differ({"--hf", "/data/a model", "--save-hf", "5"}, {"--hf", "/scratch/model", "--save-hf", "out"}), "");
  EXPECT_EQ(differ({"--timeline", "x.html", "--trace", "x.json", "--metrics", "m"}, {}), "");
  EXPECT_EQ(differ({"--data-path", "0.3", "/a", "0.7", "/b"}, {"--data-path", "0.3", "/c", "0.7", "/d"}), "");
  const std::string same = ": start all ranks with the same options";
  EXPECT_EQ(differ({"--hf", "x"}, {}), "--hf is not given on rank 1 and ... on rank 0" + same);
  EXPECT_EQ(differ({"--data-path", "0.3", "/a", "0.7", "/b"}, {"--data-path", "0.4", "/a", "0.6", "/b"}),
            "--data-path is 0.4 ... 0.6 ... on rank 1 and 0.3 ... 0.7 ... on rank 0" + same);
}

}  // namespace
}  // namespace weft
