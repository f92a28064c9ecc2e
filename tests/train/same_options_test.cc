// What a rank says when it was started with other options than rank 0. (Ranks that are refused: tests/apps/tcp_ranks_test.cc.)
#include "weft/train/same_options.h"

#include <gtest/gtest.h>

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
  const char* versions = "ranks 2 and 0 are not the same version of weft: start the same one everywhere";
  EXPECT_EQ(difference_of_options(first, {"--bf16 true", "--clip-gradient 1", "--hf "}, 2), versions);
  EXPECT_EQ(difference_of_options(first, {"--bf16 true", "--clip-grad 1"}, 2), versions);
}

}  // namespace
}  // namespace weft
