// `weft check` and `weft plan`: what a model would take, and sizes and symbols that make no model.
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "tests/apps/weft_process.h"
#include "weft/base/file.h"
#include "weft/base/json.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

Json json_of(const Words& words) { return parse_json(expect_done(words + Words{"--json"}), words[0]); }

TEST(Check, SaysParametersMemoryAndWork) {
  const Json report = json_of(Words{"check"} + tiny_model);
  EXPECT_EQ(report.at("pattern"), "[*E]");
  // Embedding and head 2 x 384 x 32 (257 ids, padded); attention 4 x 32 x 32; router 4 x 32; experts 4 x 3 x 32 x 32;
  // three norms.
  EXPECT_EQ(report.at("parameters"), 2 * 384 * 32 + 4 * 32 * 32 + 4 * 32 + 4 * 3 * 32 * 32 + 3 * 32);
  EXPECT_LT(report.at("active_parameters"), report.at("parameters"));
  EXPECT_EQ(report.at("tokens_per_step"), 2 * 16);
  EXPECT_GT(report.at("nodes").get<int>(), 0);
  // At least the multiplications of forward and backward: 6 per weight of a matrix and token, with 2 of 4 experts.
  const double active = 384 * 32 + 4 * 32 * 32 + 4 * 32 + 2 * 3 * 32 * 32;
  EXPECT_GE(report.at("flops_per_step").get<double>(), 6 * 32 * active);
  EXPECT_LE(report.at("flops_per_step").get<double>(), 1.5 * 6 * 32 * active);
  EXPECT_TRUE(report.at("faults").empty());

  const Json& memory = report.at("memory");
  const std::int64_t weights = 4 * report.at("parameters").get<std::int64_t>();
  std::int64_t sum = 0;
  for (const char* kind : {"weights", "gradients", "optimizer", "activations", "step"}) {
    EXPECT_GT(memory.at(kind).get<std::int64_t>(), 0) << kind;
    sum += memory.at(kind).get<std::int64_t>();
  }
  EXPECT_EQ(memory.at("total"), sum);
  EXPECT_GE(memory.at("weights"), weights);
  EXPECT_LE(memory.at("weights").get<double>(), 1.01 * static_cast<double>(weights)) << "aligned, but not by much";
  EXPECT_EQ(memory.at("optimizer").get<std::int64_t>(), 2 * memory.at("weights").get<std::int64_t>());

  EXPECT_THAT(expect_done(Words{"check"} + tiny_model),
              ::testing::AllOf(HasSubstr("parameters"), HasSubstr("weights"), HasSubstr("gradients"),
                               HasSubstr("optimizer"), HasSubstr("activations"), HasSubstr("FLOP")));
}

TEST(Check, Bf16HalvesWeightsAndKeepsTheirLowerBits) {
  const Json f32 = json_of(Words{"check"} + tiny_model).at("memory");
  const Json bf16 = json_of(Words{"check"} + tiny_model + Words{"--bf16"}).at("memory");
  EXPECT_NEAR(bf16.at("weights").get<double>() / f32.at("weights").get<double>(), 0.5, 0.01);
  EXPECT_EQ(bf16.at("gradients"), f32.at("gradients")) << "added up in float";
  EXPECT_NEAR(bf16.at("optimizer").get<double>() / f32.at("optimizer").get<double>(), 1.25, 0.01);
}

TEST(Check, TakesAModelThatNoMachineHolds) {
  const Json report = json_of({"check", "--num-layers", "96", "--hidden-size", "12288", "--num-attention-heads", "96",
                               "--seq-length", "2048", "--micro-batch-size", "1"});
  EXPECT_GT(report.at("parameters").get<double>(), 170e9);
}

// Its bytes could not be counted either.
TEST(Check, RefusesSizesThatAreSurelyMistakes) {
  expect_refused({"check", "--pattern", "*-", "--hidden-size", "1000000000"},
                 {"main.0*.qkv_weight would be [3000000000, 1000000000], 3e+18 numbers, which no machine holds: a size "
                  "of the model or batch is too large"});
  expect_refused({"check", "--pattern", "*-", "--hidden-size", "1000000", "--seq-length", "1073741824"},
                 {"embedding.y would be [", "a size of the model or batch is too large"});
  expect_refused({"check", "--pattern", "[*E]", "--num-experts", "1000000"},
                 {"--num-experts 1000000: a layer can have at most 65536"});
}

TEST(Check, ReadsHuggingFaceModels) {
  const Json report = json_of({"check", "--hf", golden("mixtral"), "--seq-length", "16", "--micro-batch-size", "1"});
  EXPECT_EQ(report.at("pattern"), "[*E][*E]");
}

TEST(Plan, PrintsEveryNode) {
  const Json plan = json_of(Words{"plan"} + tiny_model + Words{"--global-batch-size", "4"});
  EXPECT_EQ(plan.at("pattern"), "[*E]");
  EXPECT_EQ(plan.at("micro_batches"), 2);
  ASSERT_FALSE(plan.at("buffers").empty());
  for (const char* key : {"id", "name", "storage", "dtype", "shape", "bytes"})
    EXPECT_TRUE(plan.at("buffers")[0].contains(key)) << key;
  ASSERT_FALSE(plan.at("nodes").empty());
  for (const char* key : {"name", "phase", "lane", "micro_batch", "flops", "uses", "after"})
    EXPECT_TRUE(plan.at("nodes")[0].contains(key)) << key;
  const Words same = Words{"plan"} + tiny_model;
  const std::string text = expect_done(same);
  EXPECT_THAT(text, HasSubstr("plan [*E]\n"));
  EXPECT_THAT(text, HasSubstr("forward main.1E.route@0\n"));
  EXPECT_EQ(text, expect_done(same)) << "a plan is made the same every time";
}

TEST(Plan, WritesAPageAndPrintsJsonBesideIt) {
  const TemporaryFolder folder;
  const Words drawn = Words{"plan"} + tiny_model + Words{"--html", folder.file("p.html")};
  EXPECT_THAT(expect_done(drawn), HasSubstr(" nodes per rank; step "));
  EXPECT_EQ(json_of(drawn), json_of(Words{"plan"} + tiny_model));
}

TEST(Plan, WritesAPageIntoItsOutput) {
  const TemporaryFolder folder;
  const std::string file = folder.file("log");
  std::string command = WEFT_BINARY_DIR "/weft plan --html /dev/stdout";
  for (const std::string& word : tiny_model) command += " '" + word + "'";
  EXPECT_EQ(std::system((command + " > " + file).c_str()), 0);
  const std::string log = read_file(file);
  EXPECT_THAT(log, ::testing::StartsWith("<!"));
  EXPECT_THAT(log, HasSubstr("</html>"));
  EXPECT_THAT(log, HasSubstr(" nodes per rank; step "));
}

// `weft plan` takes the flags of `weft train`; those for what only a run writes are not dropped in silence.
TEST(Plan, SaysWhichOutputsDoNotCome) {
  const TemporaryFolder folder;
  const Words outputs = {"--timeline", folder.file("t.html"), "--trace", folder.file("t.json"), "--digest"};
  const Outcome plan = run_weft(Words{"plan"} + tiny_model + outputs);
  EXPECT_EQ(plan.code, 0);
  EXPECT_EQ(plan.err,
            "note: weft plan runs nothing (weft plan --html FILE draws its plan); ignored: --timeline, "
            "--digest\n");
  EXPECT_EQ(folder.entries(), 1u) << "the trace of the estimate";
  const Outcome check = run_weft(Words{"check"} + tiny_model + outputs);
  EXPECT_EQ(check.code, 0);
  EXPECT_THAT(check.err, HasSubstr("; ignored: --timeline, --digest, --trace\n"));
}

TEST(Sizes, MustDivide) {
  const Words check = {"check", "--pattern", "[*E]", "--seq-length", "16"};
  expect_refused(check + Words{"--hidden-size", "30"},
                 {"--num-attention-heads 4: must divide --hidden-size 30; use --hidden-size 28 or 32, or set "
                  "--kv-channels"});
  expect_refused(check + Words{"--num-query-groups", "3"},
                 {"--num-query-groups 3: must divide --num-attention-heads 4; use a divisor of it"});
  expect_refused(check + Words{"--moe-router-topk", "9"},
                 {"--moe-router-topk 9: must not exceed --num-experts 8; lower it, or use more experts"});
  expect_refused(check + Words{"--moe-router-topk", "1"}, {"--moe-router-topk 1: ", "add --moe-router-pre-softmax"});
  expect_refused(check + Words{"--moe-router-num-groups", "3", "--moe-router-group-topk", "2"},
                 {"--moe-router-num-groups 3: must divide --num-experts 8"});
  expect_refused(check + Words{"--micro-batch-size", "4", "--global-batch-size", "6"},
                 {"--global-batch-size 6: must be a multiple of --micro-batch-size x data-parallel ranks = 4 x 1 = 4; "
                  "use 4 or 8"});
  expect_refused(check + Words{"--kv-channels", "7"},
                 {"--rotary-percent 1: 7 of the 7 elements of a head would rotate"});
  expect_refused(check + Words{"--max-position-embeddings", "8"},
                 {"--max-position-embeddings 8: is below --seq-length 16; raise it"});
  expect_refused(check + Words{"--num-layers", "7"}, {"--num-layers 7: the pattern '[*E]' has 2 symbols in 1 layers"});
  expect_refused({"check", "--pattern", "[*-]", "--num-experts", "4"},
                 {"--num-experts 4: the pattern '[*-]' has no E"});
  expect_refused({"check", "--ranks", "3", "--expert-model-parallel-size", "2"},
                 {"--expert-model-parallel-size 2: must divide the 3 ranks"});
}

TEST(Sizes, ExpertsDivideOverRanksWhereverTheModelComesFrom) {
  const auto refused = [](const Words& run, const std::string& ranks, const std::string& why) {
    expect_refused(run + Words{"--seq-length", "16", "--ranks", ranks, "--expert-model-parallel-size", ranks},
                   {"--expert-model-parallel-size " + ranks + ": must divide the " + why});
  };
  refused({"check", "--pattern", "[*E]", "--num-experts", "6"}, "4", "6 experts of a layer; use 2");
  refused({"check", "--hf", golden("qwen3_moe")}, "3", "8 experts of a layer; use 1");
  refused({"check", "--hf", golden("qwen3_moe")}, "16", "8 experts of a layer; use 8");
  refused({"train", "--hf", golden("qwen3_moe"), "--mock-data"}, "3", "8 experts of a layer; use 1");
}

TEST(Explain, WorksInEveryCommandThatTakesTheFlags) {
  for (const char* command : {"train", "check", "plan", "verify"})
    EXPECT_EQ(expect_done({command, "--hidden-size", "30", "--explain", "hidden-size"}),
              "--hidden-size = 30\n  from      command line\n  default   128\n  range     at least 1\n  Width of the "
              "residual stream.\n\n")
        << "a wrong configuration can be explained";
}

}  // namespace
}  // namespace weft
