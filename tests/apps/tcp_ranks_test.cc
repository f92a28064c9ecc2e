// `weft train` on ranks that a launcher without MPI started, as a user would meet them.
#include <filesystem>

#include <fmt/format.h>

#include "tests/apps/weft_process.h"
#include "tests/comm/rank_processes.h"
#include "weft/base/file.h"

namespace weft {
namespace {

const std::string program = WEFT_BINARY_DIR "/weft";
const Words small_run = {"train",    "--pattern",
                         "[*E][*E]", "--hidden-size",
                         "32",       "--ffn-hidden-size",
                         "32",       "--num-experts",
                         "4",        "--seq-length",
                         "16",       "--micro-batch-size",
                         "1",        "--global-batch-size",
                         "8",        "--train-iters",
                         "3",        "--eval-iters",
                         "1",        "--stories",
                         "20000",    "--threads",
                         "1",        "--expert-model-parallel-size",
                         "2",        "--overlap-moe-expert-parallel-comm"};

std::string digest_in(const std::string& output) {
  const std::size_t at = output.find("digest");
  return at == std::string::npos ? "none in: " + output : output.substr(at, output.find('\n', at) - at);
}

TEST(TcpRanks, TrainLikeThreadRanks) {
  const auto ended = run_on_ranks(4, Words{program} + small_run + Words{"--digest"});
  for (const EndedProcess& each : ended) EXPECT_EQ(each.code, 0) << each.output;
  const Outcome threads = run_weft(small_run + Words{"--ranks", "4", "--digest"});
  EXPECT_EQ(threads.code, 0) << threads.err;
  EXPECT_EQ(digest_in(ended[0].output), digest_in(threads.out));
  EXPECT_EQ(ended[1].output, "");
}

TEST(TcpRanks, TheFirstPlansForAll) {
  for (const char* command : {"check", "plan"}) {
    Words words = small_run;
    words[0] = command;
    const auto ended = run_on_ranks(2, Words{program} + words);
    for (const EndedProcess& each : ended) EXPECT_EQ(each.code, 0) << each.output;
    EXPECT_EQ(ended[0].output, expect_done(words + Words{"--ranks", "2"}));
    EXPECT_EQ(ended[1].output, "");
  }
}

TEST(TcpRanks, AKilledRankIsNamedByTheOthers) {
  const auto ended = run_on_ranks(2, Words{program} + small_run + Words{"--inject-fault", "kill@20:1"});
  EXPECT_EQ(ended[1].code, 137);
  EXPECT_EQ(ended[0].code, 1);
  EXPECT_TRUE(ended[0].printed("rank 1 is gone (its connection closed)")) << ended[0].output;
}

// What two ranks print that are refused together: rank 0, and rank 1, whose fault it is.
std::string refusal_of(const Words& first, const Words& second) {
  const int port = free_port();
  RankProcesses processes;
  processes.start(Words{program} + first, torchrun_variables(0, 2, port));
  processes.start(Words{program} + second, torchrun_variables(1, 2, port));
  const auto ended = processes.wait();
  EXPECT_EQ(ended[0].code, 2);
  EXPECT_EQ(ended[1].code, 2);
  EXPECT_EQ(ended[1].output, ended[0].output);
  return ended[0].output;
}

// With options of their own beside those that they have in common.
std::string refusal(const Words& first, const Words& second) {
  return refusal_of(small_run + first, small_run + second);
}

TEST(TcpRanks, WithDifferentOptionsAreRefused) {
  // Where logs go may differ; the clipping of gradients is in no plan, so nothing else would notice it.
  EXPECT_EQ(refusal({}, {"--log-interval", "7", "--clip-grad", "0.5"}),
            "weft: --clip-grad is 0.5 on rank 1 and 1 on rank 0: start all ranks with the same options\n");
  // All ranks make samples together.
  EXPECT_EQ(refusal({"--sample", "Once"}, {}),
            "weft: --sample is not given on rank 1 and Once on rank 0: start all ranks with the same options\n");
}

// Runs of two ranks, each with its own copy of the files.
class TcpRanksWithFiles : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* rank : {"0", "1"}) {
      std::filesystem::copy(golden("llama"), work_.file(rank));
      expect_done({"tokenize", "--stories", "20K", "--output-prefix", work_.file(std::string(rank) + "/tokens")});
    }
  }

  // Of rank 1.
  void change_byte(const std::string& name, std::size_t from_end) {
    std::string bytes = read_file(file(name));
    bytes[bytes.size() - from_end] ^= 1;
    write_file_atomically(file(name), bytes);
  }
  std::string file(const std::string& name) const { return work_.file("1/" + name); }

  std::string refusal_of_models(const Words& further = {}) const {
    const auto run = [&](const char* rank) {
      return Words{"train",         "--hf", work_.file(rank),     "--mock-data",
                   "--seq-length",  "16",   "--micro-batch-size", "1",
                   "--train-iters", "2",    "--eval-iters",       "0",
                   "--threads",     "1"} +
             further;
    };
    return refusal_of(run("0"), run("1"));
  }
  std::string refusal_of_data() const {
    const auto run = [&](const std::string& rank) {
      return Words{"train"} + tiny_run + Words{"--data-path", work_.file(rank + "/tokens")};
    };
    return refusal_of(run("0"), run("1"));
  }

  TemporaryFolder work_;
};

TEST_F(TcpRanksWithFiles, OtherConfigsAreRefused) {
  std::string text = read_file(file("config.json"));
  text.replace(text.find("1e-05"), 5, "1e-06");
  write_file_atomically(file("config.json"), text);
  EXPECT_EQ(
      refusal_of_models(),
      "weft: the models differ: 'norm_epsilon 1e-06' on rank 1, 'norm_epsilon 1e-05' on rank 0: give all ranks the "
      "same config.json\n");
}

TEST_F(TcpRanksWithFiles, OtherWeightsAreRefused) {
  change_byte("model.safetensors", 100);
  EXPECT_THAT(refusal_of_models(),
              testing::AllOf(testing::StartsWith("weft: ranks 0 and 1 have loaded different weights, "
                                                 "the first of them final_norm.weight"),
                             testing::EndsWith(": give all ranks the same model\n")));
}

// Each rank takes other parts of the weights, so the files are compared.
TEST_F(TcpRanksWithFiles, OtherFilesOfDividedWeightsAreRefused) {
  change_byte("model.safetensors", 100);
  EXPECT_THAT(refusal_of_models({"--use-megatron-fsdp"}),
              testing::AllOf(testing::StartsWith("weft: the files of the model differ, first 'model.safetensors "),
                             testing::HasSubstr("' on rank 1 and 'model.safetensors "),
                             testing::EndsWith("' on rank 0: give all ranks the same files\n")));
}

TEST_F(TcpRanksWithFiles, OtherTokensAreRefused) {
  change_byte("tokens.bin", 10'000);
  EXPECT_THAT(refusal_of_data(),
              testing::AllOf(testing::StartsWith("weft: the training data is "),
                             testing::HasSubstr(" uint16 tokens, checksum "), testing::HasSubstr(" on rank 1 and "),
                             testing::EndsWith(" on rank 0: give all ranks the same files\n")));
}

TEST_F(TcpRanksWithFiles, OtherSizesOfDataAreRefused) {
  expect_done({"tokenize", "--stories", "30K", "--overwrite", "--output-prefix", file("tokens")});
  EXPECT_THAT(refusal_of_data(),
              testing::AllOf(testing::StartsWith("weft: the training data is "), testing::HasSubstr(" on rank 1 and "),
                             testing::EndsWith(" on rank 0: give all ranks the same files\n")));
}

TEST_F(TcpRanksWithFiles, WhatOneRankLacksIsSaidByItAndTheFirst) {
  std::filesystem::remove(file("tokens.idx"));
  EXPECT_EQ(refusal_of_data(), "weft: rank 1: cannot read " + file("tokens.idx") + ": No such file or directory\n");
}

TEST(TcpRanks, OfAnotherRunAreTurnedAway) {
  const int port = free_port();
  RankProcesses processes;
  for (const char* rank : {"0", "1"})
    processes.start(Words{program} + small_run +
                        Words{"--rank", rank, "--world-size", "2", "--distributed-timeout-minutes", "0.01",
                              "--clip-grad", *rank == '0' ? "1" : "0.5"},
                    {{"MASTER_ADDR", "localhost"}, {"MASTER_PORT", std::to_string(port)}});
  const auto ended = processes.wait();
  EXPECT_EQ(ended[0].code, 1);
  EXPECT_TRUE(ended[0].printed("for rank 1 of 2 to connect")) << ended[0].output;
  EXPECT_TRUE(ended[0].printed("refused: ")) << ended[0].output;
  EXPECT_EQ(ended[1].code, 2);
  EXPECT_TRUE(ended[1].printed("it belongs to run 'options ")) << ended[1].output;
  EXPECT_TRUE(ended[1].printed("start the ranks of a run with the same options")) << ended[1].output;
}

TEST(TcpRanks, StartedByHand) {
  const int port = free_port();
  RankProcesses processes;
  for (const char* rank : {"0", "1"})
    processes.start(Words{program} + small_run + Words{"--rank", rank, "--world-size", "2"},
                    {{"MASTER_ADDR", "localhost"}, {"MASTER_PORT", std::to_string(port)}});
  for (const EndedProcess& each : processes.wait()) EXPECT_EQ(each.code, 0) << each.output;
  expect_refused(small_run + Words{"--rank", "0", "--world-size", "2"}, {"MASTER_ADDR is not set"});
  expect_refused(small_run + Words{"--rank", "0"}, {"--rank also needs --world-size"});
}

}  // namespace
}  // namespace weft
