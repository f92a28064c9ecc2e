// Flags of Megatron's that Weft accepts with a note or refuses with a reason.
#include <gtest/gtest.h>

#include "tests/train/parsed_options.h"

namespace weft {
namespace {

TEST(OptionsForeign, ForeignFlagsThatAskForNothing) {
  const ParsedOptions run(
      "--use-mcore-models --transformer-impl local --no-gradient-accumulation-fusion --moe-grouped-gemm "
      "--moe-permute-fusion --use-flash-attn --num-workers 2 --attention-softmax-in-fp32 "
      "--no-masked-softmax-fusion --manual-gc --attention-dropout 0.0 --hidden-dropout 0 "
      "--moe-router-dtype fp32 --moe-token-dispatcher-type alltoall");
  EXPECT_EQ(run.flags.notes().size(), 14u);
  EXPECT_EQ(run.flags.notes()[1], "--transformer-impl local: Weft has one implementation.");
}

TEST(OptionsForeign, ForeignFlagsThatAreRefused) {
  EXPECT_EQ(error_of("--normalization LayerNorm"),
            "--normalization LayerNorm: Weft has only RMSNorm; use --normalization RMSNorm or drop the flag");
  EXPECT_EQ(error_of("--hidden-dropout 0.1"), "--hidden-dropout 0.1: Weft has no dropout; use 0 or drop the flag");
  EXPECT_EQ(error_of("--attention-dropout x"), "--attention-dropout x: 'x' is not a number");
  EXPECT_EQ(
      error_of("--position-embedding-type learned_absolute"),
      "--position-embedding-type learned_absolute: Weft has no learned positions; choose one of rope, none, yarn");
  EXPECT_EQ(error_of("--fp16"), "--fp16: Weft does not train in fp16, whose range needs loss scaling; use --bf16");
  EXPECT_EQ(error_of("--moe-router-score-function sqrtsoftplus"),
            "--moe-router-score-function sqrtsoftplus: Weft has no such score; choose one of softmax, sigmoid");
}

// Axes that Weft does not have yet: a size of 1 asks for nothing, and needs no note.
TEST(OptionsForeign, SizesOfOtherAxesMayBeOne) {
  const ParsedOptions run(
      "--tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --context-parallel-size 1 "
      "--expert-tensor-parallel-size 1 --num-virtual-stages-per-pipeline-rank 1 "
      "--hierarchical-context-parallel-sizes 1 1 --ranks 2 --expert-model-parallel-size 2");
  EXPECT_TRUE(run.flags.notes().empty());
  EXPECT_EQ(run.options.layout.data_parallel_size(), 2);
  for (const char* order : {"--use-tp-pp-dp-mapping", "--sequence-parallel"})
    EXPECT_EQ(error_of(order + std::string(" --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1")),
              "no error");
  EXPECT_EQ(error_of("--num-virtual-stages-per-pipeline-rank two"),
            "--num-virtual-stages-per-pipeline-rank: 'two' is not a whole number");
}

TEST(OptionsForeign, WhatIsNotDoneWithCheckpointsYet) {
  for (const std::string flag : {"--exit-on-missing-checkpoint", "--pretrained-checkpoint d"})
    EXPECT_EQ(error_of(flag), flag +
                                  ": Weft does not do this with checkpoints yet; drop the flag (--save, "
                                  "--save-interval and --load save and go on)");
}

// Flags that Megatron's users have in their scripts: each is accepted with a note or refused with a reason.
TEST(OptionsForeign, EverydayFlagsOfMegatronAreKnown) {
  const auto known = [](const std::string& flag, bool accepted) {
    ParsedOptions run;
    try {
      run.parse(flag);
      EXPECT_TRUE(accepted) << flag;
      EXPECT_EQ(run.flags.notes().size(), 1u) << flag;
    } catch (const UserError& error) {
      EXPECT_FALSE(accepted) << error.what();
      EXPECT_EQ(std::string(error.what()).rfind(flag + ": ", 0), 0u) << error.what();
    }
  };
  for (const char* flag :
       {"--overlap-grad-reduce", "--overlap-param-gather", "--tp-comm-overlap", "--use-flash-attn",
        "--transformer-impl transformer_engine", "--no-bias-gelu-fusion", "--no-bias-swiglu-fusion", "--no-rope-fusion",
        "--no-masked-softmax-fusion", "--no-gradient-accumulation-fusion", "--data-cache-path c",
        "--ckpt-format torch_dist", "--no-load-rng", "--main-grads-dtype fp32", "--dataloader-type single",
        "--moe-shared-expert-overlap", "--spec a.b c --pattern M*"})
    known(flag, true);
  for (const char* flag :
       {"--overlap-param-gather-with-optimizer-step", "--wandb-project p", "--wandb-exp-name e", "--use-torch-fsdp2",
        "--exp-avg-dtype bf16", "--log-params-norm", "--timing-log-level 2", "--profile"})
    known(flag, false);
}

}  // namespace
}  // namespace weft
