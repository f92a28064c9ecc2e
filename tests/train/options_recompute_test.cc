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

TEST(OptionsRecompute, SelectiveChoosesModules) {
  const auto modules = [](const std::string& words) { return of("--recompute-granularity selective" + words).modules; };
  using enum RecomputeModule;
  EXPECT_EQ(modules(""), set_of({core_attn}));
  EXPECT_EQ(of("--recompute-activations").modules, set_of({core_attn}));
  EXPECT_EQ(of("--recompute-activations").kind, Recomputation::Kind::modules);
  EXPECT_EQ(modules(" --recompute-modules layernorm moe_act"), set_of({layernorm, moe_act}));
  EXPECT_EQ(modules(" --pattern [+-][GE] --moe-shared-expert-intermediate-size 8 --recompute-modules core_attn moe_act "
                    "layernorm mla_up_proj mlp moe shared_experts gdn_norm_out"),
            set_of({core_attn, moe_act, layernorm, mla_up_proj, mlp, moe, shared_experts, gdn_norm_out}));
}

TEST(OptionsRecompute, SelectiveSaysWhatItCannotDo) {
  const auto problem = [](const std::string& words) {
    return problem_of("--recompute-granularity selective " + words);
  };
  EXPECT_EQ(
      problem("--recompute-num-layers 2"),
      "--recompute-num-layers 2: --recompute-granularity selective chooses modules of all layers; drop the flag, or "
      "use full");
  EXPECT_EQ(
      problem("--recompute-modules mla_up_proj"),
      "--recompute-modules mla_up_proj: mla_up_proj is part of +, D, and the pattern '[*-][*E][*E][*E]' has none; "
      "drop it");
  EXPECT_EQ(problem("--pattern *- --recompute-modules core_attn moe"),
            "--recompute-modules core_attn moe: moe is part of E, and the pattern '*-' has none; drop it");
  EXPECT_EQ(problem("--pattern *E --recompute-modules gdn_norm_out"),
            "--recompute-modules gdn_norm_out: gdn_norm_out is part of G, and the pattern '*E' has none; drop it");
  EXPECT_EQ(
      problem("--pattern M-"),
      "--recompute-granularity selective: core_attn is part of *, +, D, and the pattern 'M-' has none; name others "
      "with --recompute-modules");
  EXPECT_EQ(problem("--recompute-modules shared_experts"),
            "--recompute-modules shared_experts: there is no shared expert; drop shared_experts, or set "
            "--moe-shared-expert-intermediate-size");
  EXPECT_EQ(problem("--recompute-modules attention"),
            "--recompute-modules attention: is not one of core_attn, moe_act, layernorm, mla_up_proj, mlp, moe, "
            "shared_experts, gdn_norm_out");
}

TEST(OptionsRecompute, WithoutGranularityNothingIsRecomputed) {
  EXPECT_EQ(problem_of("--recompute-method uniform"),
            "--recompute-method uniform: nothing is recomputed; set --recompute-granularity full");
  EXPECT_EQ(problem_of("--recompute-num-layers 2"),
            "--recompute-num-layers 2: nothing is recomputed; set --recompute-granularity full");
  EXPECT_EQ(problem_of("--recompute-modules moe"),
            "--recompute-modules moe: nothing is recomputed; set --recompute-granularity selective");
  EXPECT_EQ(problem_of("--recompute-granularity full --recompute-method block --recompute-num-layers 1 "
                       "--recompute-modules moe"),
            "--recompute-modules moe: --recompute-granularity full computes whole layers again; drop the flag, or use "
            "selective");
}

}  // namespace
}  // namespace weft
