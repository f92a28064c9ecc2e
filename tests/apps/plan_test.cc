// `weft plan` and `weft check`: what they say of a configuration.
#include "tests/apps/weft_process.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

// The weave needs two micro-batches and an exchange; without, the plan is the same as without the flag.
TEST(Plan, SaysWhereTheWeaveHasNothingToDo) {
  const Words run = tiny_model + Words{"--ranks", "2", "--overlap-moe-expert-parallel-comm"};
  const Words spread = run + Words{"--expert-model-parallel-size", "2"};
  for (const Words& command : {Words{"plan"}, Words{"check"}, Words{"verify", "--steps", "1"},
                               Words{"train", "--train-iters", "1", "--eval-iters", "0"}}) {
    const Outcome one = run_weft(command + spread);
    EXPECT_EQ(one.code, 0) << one.err;
    EXPECT_EQ(one.err,
              "note: --overlap-moe-expert-parallel-comm weaves nothing: a step has one micro-batch and so no pair; use "
              "--global-batch-size 8 or more\n");
    expect_done(command + spread + Words{"--global-batch-size", "8"});
    EXPECT_THAT(run_weft(command + run).err, HasSubstr("hides nothing: no tokens are exchanged with"));
  }
}

}  // namespace
}  // namespace weft
