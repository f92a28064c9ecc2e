// What is divided over data-parallel ranks: Megatron's flags, how they go together, and what is wrong with them.
#include <gtest/gtest.h>

#include "tests/train/parsed_options.h"

namespace weft {
namespace {

using enum ShardingStrategy;

ShardingStrategy strategy_in(const std::string& words) {
  ParsedOptions run;
  run.parse(words + " --ranks 2");
  return strategy_of(run.options);
}

TEST(OptionsSharding, TheStrategyFollowsFromMegatronsFlags) {
  EXPECT_EQ(strategy_in(""), no_shard);
  EXPECT_EQ(strategy_in("--use-distributed-optimizer"), optim);
  EXPECT_EQ(strategy_in("--use-megatron-fsdp"), optim_grads_params);
  EXPECT_EQ(strategy_in("--data-parallel-sharding-strategy optim_grads"), optim_grads);
  EXPECT_EQ(strategy_in("--use-megatron-fsdp --data-parallel-sharding-strategy optim"), optim);
  EXPECT_EQ(strategy_in("--use-megatron-fsdp --use-distributed-optimizer --data-parallel-sharding-strategy no_shard"),
            no_shard);
  EXPECT_EQ(strategy_in("--use-megatron-fsdp --use-distributed-optimizer"), optim_grads_params);
}

TEST(OptionsSharding, ContradictionsAreNamed) {
  EXPECT_EQ(problem_of("--ranks 2 --use-distributed-optimizer --data-parallel-sharding-strategy no_shard"),
            "--data-parallel-sharding-strategy no_shard: contradicts --use-distributed-optimizer, which means optim; "
            "drop one of the two");
  EXPECT_EQ(problem_of("--ranks 2 --bf16 --use-megatron-fsdp --megatron-fsdp-main-grads-dtype bf16 "
                       "--megatron-fsdp-grad-comm-dtype fp32"),
            "--megatron-fsdp-grad-comm-dtype fp32: gradients that are kept in bf16 do not travel in fp32; drop it, or "
            "keep them in fp32");
  EXPECT_EQ(problem_of("--ranks 2 --bf16 --use-distributed-optimizer --megatron-fsdp-grad-comm-dtype bf16"),
            "--data-parallel-sharding-strategy optim: adds up micro-batches in the type in which gradients travel, so "
            "they cannot travel in bf16 and be kept in fp32; use optim_grads, or one type");
}

TEST(OptionsSharding, InstancesFitTheRanks) {
  const std::string flag = "--num-distributed-optimizer-instances ";
  EXPECT_EQ(problem_of("--ranks 6 --use-megatron-fsdp " + flag + "4"),
            flag + "4: must divide the 6 data-parallel ranks");
  EXPECT_EQ(problem_of("--ranks 8 --expert-model-parallel-size 4 --use-megatron-fsdp " + flag + "4"),
            flag +
                "4: leaves 2 ranks for each, which must be a multiple of --expert-model-parallel-size 4; use 2 or a "
                "divisor of it");
  EXPECT_EQ(problem_of("--ranks 8 --tensor-model-parallel-size 2 --expert-model-parallel-size 4 --use-megatron-fsdp " +
                       flag + "2"),
            flag +
                "2: leaves 4 ranks for each, which must be a multiple of --expert-model-parallel-size 4 x "
                "--expert-tensor-parallel-size 2; use 1 or a divisor of it");
  EXPECT_EQ(problem_of("--ranks 4 " + flag + "2"),
            flag + "2: nothing is divided; use --data-parallel-sharding-strategy");
  EXPECT_EQ(
      problem_of("--ranks 4 --use-distributed-optimizer --outer-dp-sharding-strategy optim " + flag + "2"),
      "--outer-dp-sharding-strategy optim: instances of the optimizer can divide the parts that their ranks hold, "
      "but with optim every rank holds whole weights; use --data-parallel-sharding-strategy optim_grads_params, or "
      "drop the flag");
  ParsedOptions one;
  one.parse("--ranks 4 --use-megatron-fsdp --outer-dp-sharding-strategy optim");
  EXPECT_EQ(
      sharding_notes(one.options),
      (std::vector<std::string>{"outer sharding strategy optim: there is one instance of the optimizer, so nothing "
                                "more is divided"}));
}

TEST(OptionsSharding, Bf16GradientsAreOfBf16Models) {
  for (const char* flag : {"--megatron-fsdp-grad-comm-dtype bf16", "--megatron-fsdp-main-grads-dtype bf16"})
    EXPECT_EQ(problem_of("--ranks 2 --use-megatron-fsdp " + std::string(flag)),
              std::string(flag) + ": works only with a bf16 model; add --bf16");
}

TEST(OptionsSharding, FlagsWithoutEffectAreErrors) {
  for (const char* flag : {"--suggested-communication-unit-size 1000", "--fsdp-double-buffer",
                           "--no-megatron-fsdp-enable-fine-grained-param-gather"})
    EXPECT_EQ(problem_of("--ranks 2 --use-distributed-optimizer " + std::string(flag)),
              std::string(flag) +
                  ": weights are not gathered piece by piece; use --data-parallel-sharding-strategy "
                  "optim_grads_params")
        << flag;
  EXPECT_EQ(
      problem_of("--ranks 2 --bf16 --megatron-fsdp-grad-comm-dtype bf16"),
      "--megatron-fsdp-grad-comm-dtype bf16: gradients are not divided; use --data-parallel-sharding-strategy, or "
      "--grad-reduce-in-bf16");
  EXPECT_EQ(
      problem_of("--ranks 2 --use-megatron-fsdp --fsdp-double-buffer --suggested-communication-unit-size 1000"),
      "--suggested-communication-unit-size 1000: --fsdp-double-buffer bounds what is gathered; drop one of the two");
}

TEST(OptionsSharding, OneRankIsNotedAndNotRefused) {
  ParsedOptions run;
  run.parse("--use-megatron-fsdp");
  EXPECT_EQ(
      sharding_notes(run.options),
      (std::vector<std::string>{"sharding strategy optim_grads_params: there is one rank, so nothing is divided"}));
}

TEST(OptionsSharding, WhatIsNotDividedIsNoted) {
  const auto notes_in = [](const std::string& words) {
    ParsedOptions run;
    run.parse("--use-megatron-fsdp --ranks 4 " + words);
    return sharding_notes(run.options);
  };
  const auto notes = [](const std::string& what) {
    return std::vector<std::string>{"sharding strategy optim_grads_params: " + what};
  };
  const std::string instances = " --num-distributed-optimizer-instances ",
                    outer = " --outer-dp-sharding-strategy optim";
  EXPECT_EQ(notes_in("--expert-model-parallel-size 4"),
            notes("every expert is on one rank only, so experts are not divided"));
  EXPECT_EQ(notes_in("--expert-model-parallel-size 2"), std::vector<std::string>{});
  EXPECT_EQ(notes_in("--expert-model-parallel-size 2" + instances + "2"),
            notes("every expert is on one rank only of an instance, so experts are not divided"));
  EXPECT_EQ(notes_in("--expert-model-parallel-size 2" + instances + "2" + outer), std::vector<std::string>{})
      << "instances divide them";
  EXPECT_EQ(notes_in(instances + "4"),
            notes("an instance of the optimizer is one data-parallel rank, so nothing is divided"));
  EXPECT_EQ(notes_in(instances + "4" + outer), std::vector<std::string>{});
  EXPECT_EQ(notes_in(instances + "2"), std::vector<std::string>{});
  const std::string tensor = "--tensor-model-parallel-size ";
  EXPECT_EQ(notes_in(tensor + "2"), std::vector<std::string>{});
  EXPECT_EQ(notes_in(tensor + "4"),
            notes("there is one data-parallel rank, so only what all tensor ranks hold is divided, among these"));
  EXPECT_EQ(notes_in(tensor + "2 --expert-model-parallel-size 2"),
            notes("every expert is on one rank only, so experts are not divided"));
  EXPECT_EQ(notes_in(tensor + "2 --expert-tensor-parallel-size 1 --expert-model-parallel-size 2"),
            std::vector<std::string>{});
}

TEST(OptionsSharding, GradientsTravelAndAreKeptInTheTypesAskedFor) {
  const auto precision_in = [](const std::string& words) {
    ParsedOptions run;
    run.parse("--ranks 2 --bf16 --use-megatron-fsdp " + words);
    return precision_of(run.options);
  };
  EXPECT_FALSE(precision_in("").bf16_gradients);
  EXPECT_TRUE(precision_in("--grad-reduce-in-bf16").bf16_gradients);
  EXPECT_FALSE(precision_in("--grad-reduce-in-bf16").float_gradient_parts);
  EXPECT_TRUE(precision_in("--megatron-fsdp-grad-comm-dtype bf16").bf16_gradients);
  EXPECT_TRUE(precision_in("--megatron-fsdp-grad-comm-dtype bf16").float_gradient_parts);
  EXPECT_TRUE(precision_in("--megatron-fsdp-main-grads-dtype bf16").bf16_gradients);
  EXPECT_FALSE(precision_in("--megatron-fsdp-main-grads-dtype bf16").float_gradient_parts);
  EXPECT_TRUE(precision_in("--grad-reduce-in-bf16 --megatron-fsdp-main-grads-dtype fp32").float_gradient_parts);
}

}  // namespace
}  // namespace weft
