// Flags that say what the backward pass computes again.
#include <gtest/gtest.h>

#include "tests/train/parsed_options.h"

namespace weft {
namespace {

Recomputation of(const std::string& words) {
  ParsedOptions run;
  run.parse(words);
  return recomputation_of(run.options.recompute);
}

TEST(OptionsRecompute, FullNeedsAMethodAndANumberOfLayers) {
  const Recomputation uniform = of("--recompute-granularity full --recompute-method uniform --recompute-num-layers 2");
  EXPECT_EQ(uniform.kind, Recomputation::Kind::uniform);
  EXPECT_EQ(uniform.items, 2);
  EXPECT_EQ(of("--recompute-granularity full --recompute-method block --recompute-num-layers 1").kind,
            Recomputation::Kind::block);
  EXPECT_FALSE(of("").any());
  EXPECT_EQ(problem_of("--recompute-granularity full --recompute-num-layers 1"),
            "--recompute-granularity full: also needs --recompute-method uniform or block");
  EXPECT_EQ(problem_of("--recompute-granularity full --recompute-method block"),
            "--recompute-granularity full: also needs --recompute-num-layers N; 1 takes the least memory with uniform");
}

TEST(OptionsRecompute, WithoutGranularityNothingIsRecomputed) {
  EXPECT_EQ(problem_of("--recompute-method uniform"),
            "--recompute-method uniform: nothing is recomputed; set --recompute-granularity full");
  EXPECT_EQ(problem_of("--recompute-num-layers 2"),
            "--recompute-num-layers 2: nothing is recomputed; set --recompute-granularity full");
}

}  // namespace
}  // namespace weft
