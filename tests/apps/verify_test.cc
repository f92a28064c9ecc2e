// `weft verify`: every kind of layer on several ranks, woven and delayed, against the serial single-rank oracle.
#include <nlohmann/json.hpp>

#include "tests/apps/weft_process.h"
#include "weft/base/json.h"

namespace weft {
namespace {

class Verify : public ::testing::TestWithParam<const char*> {};

TEST_P(Verify, WovenAndDelayedIsTheOracle) {
  for (const char* expert_ranks : {"2", "4"}) {
    Words run = {"verify",
                 "--pattern",
                 GetParam(),
                 "--hidden-size",
                 "32",
                 "--num-attention-heads",
                 "4",
                 "--num-experts",
                 "8",
                 "--moe-ffn-hidden-size",
                 "16",
                 "--seq-length",
                 "24",
                 "--micro-batch-size",
                 "1",
                 "--global-batch-size",
                 "12",
                 "--stories",
                 "20000",
                 "--ranks",
                 "4",
                 "--expert-model-parallel-size",
                 expert_ranks,
                 "--overlap-moe-expert-parallel-comm",
                 "--delay-wgrad-compute",
                 "--steps",
                 "2",
                 "--fp64",
                 "--json"};
    const std::string pattern = GetParam();  // a flag of layers that are not there is refused
    if (pattern.find('-') != std::string::npos) run = run + Words{"--ffn-hidden-size", "32"};
    if (pattern.find_first_of("+D") != std::string::npos)
      run = run + Words{"--kv-lora-rank", "16", "--q-lora-rank", "16"};
    const Json report = parse_json(expect_done(run), "verify");
    EXPECT_EQ(report.at("equal"), true) << report.dump(1);
    EXPECT_EQ(report.at("steps").size(), 2u);
    EXPECT_LE(report.at("tolerance"), 1e-9);
  }
}
INSTANTIATE_TEST_SUITE_P(Patterns, Verify,
                         ::testing::Values("MEM*EME", "M[M*]-[GE]", "[+E][DE]", "[*-][*E]/[*E]/[*E]"));

// The command lines of those who train sharded with overlap (scenario A4), and with two buffers.
TEST(VerifySharded, WhateverIsDividedIsTheOracle) {
  for (const char* strategy : {"no_shard", "optim", "optim_grads", "optim_grads_params"})
    for (const bool delay : {false, true}) {
      Words run = {"verify",
                   "--pattern",
                   "[*E][*-]",
                   "--hidden-size",
                   "32",
                   "--num-attention-heads",
                   "4",
                   "--num-experts",
                   "4",
                   "--moe-ffn-hidden-size",
                   "16",
                   "--ffn-hidden-size",
                   "32",
                   "--seq-length",
                   "24",
                   "--micro-batch-size",
                   "1",
                   "--global-batch-size",
                   "8",
                   "--stories",
                   "20000",
                   "--ranks",
                   "4",
                   "--expert-model-parallel-size",
                   "2",
                   "--use-megatron-fsdp",
                   "--data-parallel-sharding-strategy",
                   strategy,
                   "--overlap-moe-expert-parallel-comm",
                   "--steps",
                   "2",
                   "--fp64",
                   "--json"};
      if (delay) run.emplace_back("--delay-wgrad-compute");
      if (delay && strategy == std::string("optim_grads_params")) run.emplace_back("--fsdp-double-buffer");
      const Json report = parse_json(expect_done(run), "verify");
      EXPECT_EQ(report.at("equal"), true) << strategy << report.dump(1);
      EXPECT_LE(report.at("tolerance"), 1e-9);
    }
}

TEST(VerifyRecomputed, WhatIsComputedAgainIsTheOracle) {
  const Words common = {"verify",
                        "--pattern",
                        "[M+E][D-][GE]/[*E]",
                        "--hidden-size",
                        "32",
                        "--num-attention-heads",
                        "4",
                        "--num-experts",
                        "4",
                        "--moe-ffn-hidden-size",
                        "16",
                        "--moe-shared-expert-intermediate-size",
                        "16",
                        "--kv-lora-rank",
                        "16",
                        "--q-lora-rank",
                        "16",
                        "--ffn-hidden-size",
                        "32",
                        "--seq-length",
                        "24",
                        "--micro-batch-size",
                        "1",
                        "--global-batch-size",
                        "8",
                        "--stories",
                        "20000",
                        "--ranks",
                        "4",
                        "--expert-model-parallel-size",
                        "2",
                        "--use-megatron-fsdp",
                        "--overlap-moe-expert-parallel-comm",
                        "--delay-wgrad-compute",
                        "--steps",
                        "2",
                        "--fp64",
                        "--json"};
  for (const Words& how : {Words{"full", "--recompute-method", "uniform", "--recompute-num-layers", "1"},
                           Words{"full", "--recompute-method", "block", "--recompute-num-layers", "2"},
                           Words{"selective", "--recompute-modules", "core_attn", "moe_act", "layernorm", "mla_up_proj",
                                 "mlp", "moe", "shared_experts", "gdn_norm_out"}}) {
    const Json report = parse_json(expect_done(common + Words{"--recompute-granularity"} + how), "verify");
    EXPECT_EQ(report.at("equal"), true) << how[0] << report.dump(1);
    EXPECT_LE(report.at("tolerance"), 1e-9);
  }
}

// Ranks that divide layers, and experts; the grid's MoE-GPT and Mamba-MoE among them.
TEST(VerifyTensor, EveryDivisionIsTheOracle) {
  struct Run {
    const char* pattern;
    Words layout;
  };
  const Run runs[] = {
      {"[*E][*E]/[*E]/[*E]",
       {"--ranks", "8", "--tensor-model-parallel-size", "2", "--sequence-parallel", "--expert-tensor-parallel-size",
        "1", "--expert-model-parallel-size", "4"}},
      {"M*ME", {"--ranks", "8", "--tensor-model-parallel-size", "4", "--expert-model-parallel-size", "2"}},
      {"[+E]G-",
       {"--ranks", "4", "--tensor-model-parallel-size", "2", "--expert-model-parallel-size", "2",
        "--expert-tensor-parallel-size", "1", "--data-parallel-sharding-strategy", "optim_grads_params",
        "--overlap-optimizer"}},
      // Weights of G's last product read what its backward pass does not: their unit computes it again.
      {"[+E]G-",
       {"--ranks", "4", "--tensor-model-parallel-size", "2", "--context-parallel-size", "2", "--recompute-granularity",
        "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"}},
  };
  for (const Run& r : runs) {
    Words run = Words{"verify", "--pattern", r.pattern} +
                Words{"--hidden-size",
                      "32",
                      "--num-attention-heads",
                      "4",
                      "--num-experts",
                      "4",
                      "--moe-ffn-hidden-size",
                      "16",
                      "--moe-shared-expert-intermediate-size",
                      "16",
                      "--moe-aux-loss-coeff",
                      "0.01",
                      "--seq-length",
                      "24",
                      "--micro-batch-size",
                      "1",
                      "--global-batch-size",
                      "8",
                      "--stories",
                      "20000",
                      "--overlap-moe-expert-parallel-comm",
                      "--delay-wgrad-compute",
                      "--steps",
                      "2",
                      "--fp64",
                      "--json"} +
                r.layout;
    const std::string pattern = r.pattern;  // a flag of layers that are not there is refused
    if (pattern.find('M') != std::string::npos)
      run = run + Words{"--mamba-head-dim", "8", "--mamba-num-heads", "8", "--mamba-num-groups", "4"};
    if (pattern.find('+') != std::string::npos)
      run =
          run + Words{"--kv-lora-rank",           "16", "--q-lora-rank",          "16", "--ffn-hidden-size",       "32",
                      "--linear-num-value-heads", "4",  "--linear-num-key-heads", "2",  "--linear-value-head-dim", "8",
                      "--linear-key-head-dim",    "8"};
    const Json report = parse_json(expect_done(run), "verify");
    EXPECT_EQ(report.at("equal"), true) << r.pattern << report.dump(1);
    EXPECT_LE(report.at("tolerance"), 1e-9);
  }
}

}  // namespace
}  // namespace weft
