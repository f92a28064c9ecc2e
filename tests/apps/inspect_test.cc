// `weft inspect` as a user has it.
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "tests/apps/weft_process.h"
#include "weft/base/json.h"

namespace weft {
namespace {

using testing::HasSubstr;

class InspectCommand : public testing::Test {
 protected:
  static Words train(const std::string& dir) {
    return Words{"train", "--device", "cpu"} + tiny_run +
           Words{"--save",
                 dir,
                 "--save-interval",
                 "2",
                 "--stories",
                 "20000",
                 "--ranks",
                 "2",
                 "--expert-model-parallel-size",
                 "2",
                 "--global-batch-size",
                 "4"};
  }
  // A comparison prints its report whatever it finds; the exit code tells the result.
  static std::string diff(const Words& words, int code) {
    const Outcome outcome = run_weft(Words{"inspect"} + words);
    EXPECT_EQ(outcome.code, code) << outcome.out << outcome.err;
    EXPECT_EQ(outcome.err, "");
    return outcome.out;
  }
  TemporaryFolder folder_;
};

TEST_F(InspectCommand, SaysWhatARunHasSaved) {
  const std::string run = folder_.file("run"), last = run + "/iter_0000003";
  expect_done(train(run));
  const std::string list = expect_done({"inspect", run});
  EXPECT_THAT(list, HasSubstr("  iter_0000002 "));
  EXPECT_THAT(list, HasSubstr("complete, the one to go on from\n"));
  EXPECT_EQ(parse_json(expect_done({"inspect", run, "--json"}), "list").at("named"), 3);

  const std::string text = expect_done({"inspect", last, "--verify", "--tensors", "--only", "weight/*.gate.?"});
  for (const char* part :
       {": Weft checkpoint\n", "[*E], ", "3, 12 samples consumed, 3 optimizer steps",
        "2 ranks, expert-model-parallel-size 2", "its state is there", "those of all tensors are right",
        "--hidden-size 32", "\nweight/language.main.1.gate.3  F32   [32, 32]\n"})
    EXPECT_THAT(text, HasSubstr(part));
  const Json json = parse_json(expect_done({"inspect", last, "--json", "--tensors"}), "json");
  EXPECT_EQ(json.at("form"), "weft");
  EXPECT_EQ(json.at("iteration"), 3);
  EXPECT_EQ(json.at("layout").at("expert-model-parallel-size"), "2");
  EXPECT_EQ(json.at("arguments").at("hidden-size"), "32");
  EXPECT_EQ(json.at("tensor_list").size(), json.at("tensors"));
  EXPECT_EQ(json.at("by_content").at("weight").at("elements"), json.at("parameters"));

  // One byte of one tensor.
  std::fstream file(last + "/rank-00001.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('\x55');
  file.close();
  expect_done({"inspect", last});
  expect_refused({"inspect", last, "--verify"}, {"rank-00001.safetensors: tensor '", "the file is damaged"});
}

TEST_F(InspectCommand, ComparesTwoCheckpoints) {
  const std::string run = folder_.file("run"), first = run + "/iter_0000002", last = run + "/iter_0000003";
  expect_done(train(run));
  EXPECT_THAT(diff({"--diff", last, run}, 0), HasSubstr(" tensors by name: 66 equal bit for bit\n"));
  EXPECT_THAT(diff({"--diff", first, last}, 1), HasSubstr("66 different"));
  const Json json = parse_json(diff({"--diff", first, last, "--only", "weight/*.up.*", "--json"}, 1), "json");
  EXPECT_FALSE(json.at("equal").get<bool>());
  EXPECT_EQ(json.at("counts").at("different"), 4);
  EXPECT_GT(json.at("tensors")[0].at("max_absolute"), 0);

  const std::string model = golden("qwen3_moe"), fused = folder_.file("fused");
  expect_done({"convert", "--from", "hf", "--to", "hf", "--experts", "fused", "--in", model, "--out", fused});
  EXPECT_THAT(diff({"--diff", model, fused}, 0), HasSubstr("69 tensors by parameter: 69 equal bit for bit\n"));
  EXPECT_THAT(diff({"--diff", model, golden("qwen3_moe_b")}, 1), HasSubstr("only in A"));
  EXPECT_THAT(diff({"--diff", model, run}, 1), HasSubstr("of another shape"));
  EXPECT_THAT(diff({"--diff", model, golden("torch_dist/hybrid")}, 0), HasSubstr(" by parameter: "));
}

TEST_F(InspectCommand, WrongRequestsAreRefused) {
  expect_refused({"inspect"}, {"weft inspect: name a folder, or two with --diff A B"});
  expect_refused({"inspect", "--diff", golden("llama")}, {"--diff: names 1 folder; it compares two, --diff A B"});
  expect_refused({"inspect", golden("llama"), "--diff", golden("llama"), golden("llama")}, {"is one folder too many"});
  expect_refused({"inspect", golden("llama"), "--only", "x"}, {"--only x: chooses what --tensors lists"});
  expect_refused({"inspect", folder_.file("none")}, {"none: not a folder"});
  expect_refused({"inspect", "--diff", golden("llama"), golden("llama"), "--only", "x"},
                 {"there is nothing to compare: no tensor matches --only x"});
}

}  // namespace
}  // namespace weft
