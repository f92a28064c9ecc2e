// The message of a rank that was started with other options than rank 0. Whole runs: tests/apps/tcp_ranks_test.cc.
#include "weft/train/same_options.h"

#include <gtest/gtest.h>

#include "weft/comm/local/cluster.h"
#include "weft/train/options.h"

namespace weft {
namespace {

using Lines = std::vector<std::string>;

// The message of two ranks, the last of `ranks` and the others, with these options.
std::string message_of(const Lines& first, const Lines& own, int ranks = 2) {
  std::string message;
  LocalCluster(ranks).run([&](World& world) {
    const bool last = world.rank().value == ranks - 1;
    try {
      require_same_options(RankExchange(&world), last ? own : first);
    } catch (const AgreedError& error) {
      EXPECT_EQ(error.rank().value, ranks - 1);
      if (last) message = error.what();
    }
  });
  return message;
}

TEST(SameOptions, SaysWhichDiffers) {
  const Lines first{"--bf16 true", "--clip-grad 1", "--hf "};
  EXPECT_EQ(message_of(first, first, 4), "");
  EXPECT_EQ(message_of(first, {"--bf16 true", "--clip-grad 0.5", "--hf "}, 4),
            "--clip-grad is 0.5 on rank 3 and 1 on rank 0: start all ranks with the same options");
  EXPECT_EQ(message_of(first, {"--bf16 true", "--clip-grad 1", "--hf there"}),
            "--hf is there on rank 1 and not given on rank 0: start all ranks with the same options");
  const char* versions = "ranks 1 and 0 run different versions of weft: start the same one everywhere";
  EXPECT_EQ(message_of(first, {"--bf16 true", "--clip-gradient 1", "--hf "}), versions);
  EXPECT_EQ(message_of(first, {"--bf16 true", "--clip-grad 1"}), versions);
}

Lines lines_of(const Lines& words) {
  TrainOptions options;
  FlagTable flags("");
  add_train_flags(flags, options);
  flags.apply(flags.scan(words));
  return options_in_common(flags);
}

TEST(SameOptions, FilesMayLieElsewhereAndOnlyTheFirstRankDraws) {
  const auto differ = [](const Lines& first, const Lines& own) { return message_of(lines_of(first), lines_of(own)); };
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
