// `weft verify` of pipelines: in every order, with virtual stages, MTP, tied weights, divided and recomputed.
#include <sstream>

#include <nlohmann/json.hpp>

#include "tests/apps/weft_process.h"
#include "weft/base/json.h"

namespace weft {
namespace {

Words words_of(const std::string& text) {
  std::istringstream in(text);
  Words words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

// options: words between blanks. No flag may be idle, so the pattern decides which sizes are given.
void expect_verified(const std::string& pattern, const std::string& options) {
  std::string run =
      "verify --fp64 --json --steps 2 --hidden-size 32 --seq-length 16 --micro-batch-size 1 --stories 20000 ";
  if (pattern.find_first_of("*+D") != std::string::npos) run += "--num-attention-heads 4 ";
  if (pattern.find('-') != std::string::npos) run += "--ffn-hidden-size 32 ";
  if (pattern.find('E') != std::string::npos) run += "--num-experts 8 --moe-ffn-hidden-size 16 ";
  if (pattern.find_first_of("+D") != std::string::npos) run += "--kv-lora-rank 16 --q-lora-rank 16 ";
  Words words = words_of(run + options);
  words.insert(words.end(), {"--pattern", pattern});
  const Json report = parse_json(expect_done(words), "verify");
  EXPECT_EQ(report.at("equal"), true) << pattern << " " << options << report.dump(1);
  EXPECT_LE(report.at("tolerance"), 1e-9);
}

TEST(VerifyPipelines, EveryOrderIsTheOracle) {
  const std::string two =
      "--ranks 4 --pipeline-model-parallel-size 2 --expert-model-parallel-size 2 --global-batch-size 16 ";
  for (const char* how : {"", "--delay-wgrad-compute", "--overlap-moe-expert-parallel-comm --delay-wgrad-compute"})
    for (const char* order : {"1f1b", "zero-bubble"})
      expect_verified("[*E]|[M-]/[*E]", two + how + " --pipeline-order " + order);
  expect_verified("[*E]-|GE|[*-]|[*E]", two + "--overlap-optimizer");
  expect_verified("[*E][*-][*E][*-]", two + "--num-virtual-stages-per-pipeline-rank 2 --use-tp-pp-dp-mapping");
}

// F1: DeepSeek-V3's shape, 4 stages of 2 virtual ones, experts over all data ranks, MTP in the last chunk; 16 of its 256 ranks.
TEST(VerifyPipelines, OfDeepSeekIsTheOracle) {
  expect_verified("[+-][+E]|[+E][+E]|[+E][+E]|[+E][+E]|[+E][+E]|[+E][+E]|[+E][+E]|[+E][+E]/[+E]",
                  "--ranks 16 --pipeline-model-parallel-size 4 --expert-model-parallel-size 4 --global-batch-size 16 "
                  "--overlap-moe-expert-parallel-comm --delay-wgrad-compute");
}

// F2: a trailing pipe, so that MTP stands in a chunk without layers of the main part, and the final norm there.
TEST(VerifyPipelines, WithTheFinalNormInAChunkOfItsOwnIsTheOracle) {
  for (const char* how : {"", "--overlap-moe-expert-parallel-comm --delay-wgrad-compute"})
    for (const char* tied : {"", "--tie-embeddings"})
      expect_verified("[*E]|[*E]|[*E]|/[*E]",
                      std::string("--ranks 4 --pipeline-model-parallel-size 2 --expert-model-parallel-size 2 "
                                  "--global-batch-size 8 ") +
                          how + " " + tied);
}

// A4: the command lines of those who train sharded with overlap, on pipelines and virtual stages.
TEST(VerifyPipelines, ThatAreDividedAreTheOracle) {
  for (const char* strategy : {"no_shard", "optim", "optim_grads", "optim_grads_params"})
    for (const char* pattern : {"[*E]|[*-]", "[*E]|[*-]|[*E]|[*-]"})
      expect_verified(pattern,
                      std::string("--ranks 8 --pipeline-model-parallel-size 2 --expert-model-parallel-size 2 "
                                  "--global-batch-size 16 --use-megatron-fsdp --overlap-moe-expert-parallel-comm "
                                  "--data-parallel-sharding-strategy ") +
                          strategy + (pattern[6] == '*' ? " --delay-wgrad-compute" : ""));
}

// Mixtures with the other axes, of up to 16 ranks.
TEST(VerifyPipelines, WithOtherAxesAreTheOracle) {
  const std::string overlap = " --overlap-moe-expert-parallel-comm --delay-wgrad-compute";
  const std::string stages = "--global-batch-size 8 --pipeline-model-parallel-size ";
  expect_verified("[*E]|[*-]/[*E]", stages + "2 --ranks 4 --tensor-model-parallel-size 2 --sequence-parallel");
  expect_verified("[*E]|[*-]|[*E]|-/[*E]",
                  stages + "2 --ranks 4 --tensor-model-parallel-size 2 --tie-embeddings --pipeline-order interleaved");
  expect_verified("[*E]|[*E]", stages + "2 --ranks 8 --tensor-model-parallel-size 2 --expert-tensor-parallel-size 2 " +
                                   "--expert-model-parallel-size 2 --sequence-parallel" + overlap);
  expect_verified("[*E]|[M-]|[*E]|[*E]|-|[*E]|[*E]|E/[*E]",
                  stages + "4 --ranks 8 --expert-model-parallel-size 2" + overlap);
  expect_verified("[+E]|[D-]|[+E]|",
                  stages + "2 --ranks 16 --tensor-model-parallel-size 2 --expert-model-parallel-size 4 " +
                      "--expert-tensor-parallel-size 1 --sequence-parallel --use-megatron-fsdp" + overlap);
}

// C6: a DeepSeek-V3 as a transformer on 2 stages of 4 virtual ones, and as a pattern on one; plain and overlapped. The same
// weights and samples, so all have the same losses.
TEST(VerifyPipelines, OfATransformerIsTheHybrid) {
  const std::string common =
      "verify --fp64 --json --steps 2 --hidden-size 32 --seq-length 16 --micro-batch-size 1 --stories 20000 "
      "--num-attention-heads 4 --ffn-hidden-size 32 --num-experts 8 --moe-ffn-hidden-size 16 --kv-lora-rank 16 "
      "--q-lora-rank 16 --global-batch-size 8 --ranks 4 --expert-model-parallel-size 2 ";
  const std::string transformer =
      "--num-layers 16 --multi-latent-attention --moe-layer-freq ([0]*1+[1]*15) --pipeline-model-parallel-size 2 "
      "--num-layers-per-virtual-pipeline-stage 2 ";
  std::string hybrid = "--pattern [+-]";
  for (int i = 1; i < 16; ++i) hybrid += "[+E]";
  std::vector<double> losses;
  for (const std::string& form : {transformer, hybrid})
    for (const char* overlap : {"", " --overlap-moe-expert-parallel-comm --delay-wgrad-compute"}) {
      const Json report = parse_json(expect_done(words_of(common + form + overlap)), "verify");
      EXPECT_EQ(report.at("equal"), true) << form << overlap << report.dump(1);
      const double loss = report.at("steps").back().at("loss");
      losses.push_back(loss);
      EXPECT_NEAR(loss / losses.front(), 1, 1e-9) << form << overlap;
    }
}

TEST(VerifyPipelines, ThatComputeAgainAreTheOracle) {
  for (const char* how : {"full --recompute-method uniform --recompute-num-layers 1",
                          "full --recompute-method block --recompute-num-layers 1",
                          "selective --recompute-modules core_attn moe_act layernorm mlp"})
    expect_verified("[*E][*-]|[*E]/[*E]",
                    std::string("--ranks 8 --pipeline-model-parallel-size 2 --expert-model-parallel-size 2 "
                                "--global-batch-size 16 --overlap-moe-expert-parallel-comm --use-megatron-fsdp "
                                "--recompute-granularity ") +
                        how);
}

}  // namespace
}  // namespace weft
