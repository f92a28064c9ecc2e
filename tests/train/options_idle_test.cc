// A flag that is set and has no effect is an error that tells why.
#include <gtest/gtest.h>

#include "tests/train/parsed_options.h"

namespace weft {
namespace {

TEST(OptionsIdle, FlagsOfLayersThatAreNotThere) {
  EXPECT_EQ(problem_of("--pattern *- --num-experts 4"), "--num-experts 4: the pattern '*-' has no E; drop the flag");
  const auto idle = [](const std::string& pattern, const std::string& flag, const std::string& layers) {
    EXPECT_EQ(problem_of("--pattern " + pattern + " " + flag),
              flag + ": the pattern '" + pattern + "' has no " + layers + "; drop the flag");
  };
  for (const char* flag :
       {"--moe-aux-loss-coeff 0.1", "--moe-expert-capacity-factor 2", "--moe-router-topk 4", "--moe-ffn-hidden-size 64",
        "--moe-z-loss-coeff 0.1", "--moe-router-pre-softmax", "--moe-shared-expert-intermediate-size 8"})
    idle("*-", flag, "E");
  idle("*-", "--mamba-chunk-size 64", "M");
  idle("*-", "--linear-key-head-dim 64", "G");
  idle("*-", "--kv-lora-rank 16", "+, D");
  idle("[+-]", "--dsa-indexer-topk 16", "D");
  for (const char* flag : {"--num-query-groups 2", "--window-size 8", "--softmax-type learnable"})
    idle("M-", flag, "*");
  for (const char* flag :
       {"--num-attention-heads 8", "--rotary-base 500000", "--position-embedding-type yarn", "--qk-layernorm"})
    idle("M-", flag, "*, +, D");
  for (const char* flag : {"--squared-relu", "--ffn-hidden-size 64"}) idle("M*", flag, "-, E");
  idle("*-", "--mtp-loss-scaling-factor 0.5", "/");
  EXPECT_EQ(problem_of("--pattern *- --ranks 2 --expert-model-parallel-size 2"),
            "--expert-model-parallel-size 2: the pattern '*-' has no E; drop the flag");
}

TEST(OptionsIdle, WordsThatChooseLayersNeedThePattern) {
  EXPECT_EQ(problem_of("--is-hybrid-model"), "--is-hybrid-model: --pattern chooses the layers; set it");
  EXPECT_EQ(problem_of("--pattern [+-] --multi-latent-attention --qk-layernorm"), "no error");
  EXPECT_EQ(problem_of("--pattern M* --is-hybrid-model"), "no error");
}

TEST(OptionsIdle, FlagsThatNeedAnother) {
  EXPECT_EQ(problem_of("--no-rope --use-rope-scaling"),
            "--use-rope-scaling: attention has no positions (--position-embedding-type none); drop one of the two");
  EXPECT_EQ(problem_of("--rotary-scaling-factor 4"), "--rotary-scaling-factor 4: needs --position-embedding-type yarn");
  EXPECT_EQ(problem_of("--pattern [+-] --mscale 2"), "--mscale 2: needs --rotary-scaling-factor");
  EXPECT_EQ(problem_of("--rope-scaling-factor 4"), "--rope-scaling-factor 4: needs --use-rope-scaling");
  EXPECT_EQ(problem_of("--gelu --activation-func-clamp-value 7"),
            "--activation-func-clamp-value 7: only swiglu and quick-geglu are clamped; drop the flag");
  EXPECT_EQ(problem_of("--glu-linear-offset 1"),
            "--glu-linear-offset 1: only quick-geglu has an offset; drop the flag");
  EXPECT_EQ(problem_of("--moe-shared-expert-gate"),
            "--moe-shared-expert-gate: there is no shared expert; set --moe-shared-expert-intermediate-size");
  EXPECT_EQ(problem_of("--moe-pad-expert-input-to-capacity"),
            "--moe-pad-expert-input-to-capacity: needs --moe-expert-capacity-factor");
  EXPECT_EQ(problem_of("--moe-token-drop-policy position"),
            "--moe-token-drop-policy position: needs --moe-expert-capacity-factor");
  EXPECT_EQ(problem_of("--moe-router-bias-update-rate 0.1"),
            "--moe-router-bias-update-rate 0.1: needs --moe-router-enable-expert-bias");
  EXPECT_EQ(problem_of("--moe-router-load-balancing-type seq_aux_loss"),
            "--moe-router-load-balancing-type seq_aux_loss: its coefficient is 0; set --moe-aux-loss-coeff");
  EXPECT_EQ(problem_of("--split 1,1,1"), "--split 1,1,1: only --data-path and --mock-data are split; drop the flag");
  EXPECT_EQ(problem_of("--lr-wsd-decay-iters 5"),
            "--lr-wsd-decay-iters 5: only --lr-decay-style WSD uses it; drop the flag");
  EXPECT_EQ(problem_of("--lr-wsd-decay-style cosine"),
            "--lr-wsd-decay-style cosine: only --lr-decay-style WSD uses it; drop the flag");
  EXPECT_EQ(problem_of("--lr-decay-style constant --min-lr 1e-4"),
            "--min-lr 0.0001: with --lr-decay-style constant the learning rate does not fall; drop the flag");
  EXPECT_EQ(problem_of("--lr-warmup-init 1e-5"), "--lr-warmup-init 1e-05: there is no warm-up; set --lr-warmup-iters");
  for (const std::string flag : {"--adam-beta1 0.8", "--adam-beta2 0.999", "--adam-eps 1e-05"})
    EXPECT_EQ(problem_of("--optimizer sgd " + flag), flag + ": only --optimizer adam uses it; drop the flag");
  EXPECT_EQ(problem_of("--sgd-momentum 0.5"), "--sgd-momentum 0.5: only --optimizer sgd uses it; drop the flag");
  EXPECT_EQ(problem_of("--ep-overlap-early-attn-memory-release"),
            "--ep-overlap-early-attn-memory-release: needs --overlap-moe-expert-parallel-comm");
  EXPECT_EQ(problem_of("--overlap-moe-expert-parallel-comm --overlap-dispatch-backward-with-experts-wgrad"),
            "--overlap-dispatch-backward-with-experts-wgrad: --overlap-moe-expert-parallel-comm already hides this "
            "exchange; drop one of the two");
  EXPECT_EQ(problem_of("--delay-wgrad-compute --overlap-dispatch-backward-with-experts-wgrad"), "no error");
  EXPECT_EQ(problem_of("--emulate-network latency=1ms"),
            "--emulate-network latency=1ms: there is only one rank; add --ranks N");
  EXPECT_EQ(problem_of("--decoder-first-pipeline-num-layers 1"),
            "--decoder-first-pipeline-num-layers 1: there are no pipeline stages; drop the flag");
}

TEST(OptionsIdle, AModelThatIsLoadedSaysAllOfItself) {
  for (const std::string flag :
       {"--hidden-size 128", "--vocab-size 20", "--make-vocab-size-divisible-by 64", "--no-rope"})
    EXPECT_EQ(problem_of("--hf some/dir --mock-data " + flag),
              flag + ": --hf some/dir already decides the model; drop the flag");
}

TEST(OptionsIdle, WhatIsSetToItsDefaultAsksForNothing) {
  for (const char* words :
       {"--pattern *- --moe-aux-loss-coeff 0 --moe-router-topk 2 --moe-router-load-balancing-type aux_loss",
        "--pattern MM --position-embedding-type none --disable-bias-linear --swiglu --num-attention-heads 4",
        "--no-rope --rotary-percent 1.0 --rotary-base 10000", "--split 969,30,1 --min-lr 0 --lr-decay-style constant",
        "--optimizer sgd --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-8", "--optimizer adamw --sgd-momentum 0.9",
        "--pattern [+E] --rotary-scaling-factor 40 --mscale 0.5", "--pattern */* --mtp-loss-scaling-factor 0.3"})
    EXPECT_EQ(problem_of(words), "no error") << words;
}

}  // namespace
}  // namespace weft
