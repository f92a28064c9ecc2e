// `weft train` on ranks that a launcher without MPI started, as a user would meet them.
#include <fmt/format.h>

#include "tests/apps/weft_process.h"
#include "tests/comm/rank_processes.h"

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
  EXPECT_TRUE(ended[0].says("rank 1 is gone (its connection closed)")) << ended[0].output;
}

// What rank 0 says if rank 1 has options of its own beside those of rank 0.
std::string refusal(const Words& first, const Words& second) {
  const int port = free_port();
  RankProcesses processes;
  processes.start(Words{program} + small_run + first, torchrun_variables(0, 2, port));
  processes.start(Words{program} + small_run + second, torchrun_variables(1, 2, port));
  const auto ended = processes.wait();
  EXPECT_EQ(ended[0].code, 2);
  EXPECT_EQ(ended[1].code, 2);
  EXPECT_EQ(ended[1].output, "");  // rank 0 has said it
  return ended[0].output;
}

TEST(TcpRanks, WithDifferentOptionsAreRefused) {
  // Where logs go may differ; the clipping of gradients is in no plan, so nothing else would notice it.
  EXPECT_EQ(refusal({}, {"--log-interval", "7", "--clip-grad", "0.5"}),
            "weft: --clip-grad is 0.5 on rank 1 and 1 on rank 0: start all ranks with the same options\n");
  // All ranks make samples together.
  EXPECT_EQ(refusal({"--sample", "Once"}, {}),
            "weft: --sample is not given on rank 1 and Once on rank 0: start all ranks with the same options\n");
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
