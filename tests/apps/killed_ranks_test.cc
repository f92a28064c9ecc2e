// A kill of one of several processes at any moment of saving.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "tests/apps/weft_process.h"
#include "tests/comm/rank_processes.h"
#include "weft/base/random.h"
#include "weft/checkpoint/find_checkpoint.h"
#include "weft/checkpoint/run_checkpoint.h"

namespace weft {
namespace {

const std::string program = WEFT_BINARY_DIR "/weft";
const Words small_run = Words{"train", "--device", "cpu"} + tiny_model +
                        Words{"--global-batch-size",
                              "8",
                              "--train-iters",
                              "100000000",
                              "--eval-iters",
                              "0",
                              "--threads",
                              "1",
                              "--stories",
                              "20000",
                              "--log-interval",
                              "100000",
                              "--digest",
                              "--expert-model-parallel-size",
                              "2"};

std::string digest_in(const std::string& output) {
  const std::size_t at = output.find("digest");
  return at == std::string::npos ? "none in: " + output : output.substr(at, output.find('\n', at) - at);
}

// Two ranks go on from the last checkpoint and save after every step; one of them is killed a few saves later.
void kill_one_at_random_moments(bool beside, int kills) {
  const TemporaryFolder folder;
  const std::string dir = folder.file("run");
  Words words = small_run + Words{"--save", dir, "--load", dir, "--save-interval", "1", "--keep-last", "2"};
  if (beside) words.push_back("--async-save");
  std::int64_t last = 0;
  for (int i = 0; i < kills; ++i) {
    SCOPED_TRACE(fmt::format("kill {}", i));
    const std::uint64_t key = random_key(static_cast<std::uint64_t>(i), beside ? "kill one" : "end one");
    const std::int64_t wanted = last + 1 + static_cast<std::int64_t>(random_below(key, 0, 3));
    const auto killed = static_cast<std::size_t>(random_below(key, 1, 2));
    const int port = free_port();
    RankProcesses processes;
    for (const int rank : {0, 1}) processes.start(Words{program} + words, torchrun_variables(rank, 2, port));
    for (int t = 0; t < 20'000 && latest_checkpoint(dir).value_or(0) < wanted; ++t)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::microseconds(random_below(key, 2, 10'000)));
    processes.kill(killed);
    const auto ended = processes.wait();
    const EndedProcess& other = ended[1 - killed];
    ASSERT_EQ(other.code, 1) << other.output;
    EXPECT_TRUE(other.printed(fmt::format("rank {} is gone (its connection closed)", killed))) << other.output;
    const std::optional<std::int64_t> latest = latest_checkpoint(dir);
    ASSERT_TRUE(latest && *latest >= wanted) << other.output;
    last = *latest;
    for (const std::int64_t iteration : checkpoints_in(dir)) RunCheckpoint(checkpoint_folder(dir, iteration)).verify();
  }
  // Weights two steps later are those of a run that was never stopped.
  const Words two_more = small_run + Words{"--ranks", "2", "--exit-interval", std::to_string(last + 2)};
  EXPECT_EQ(digest_in(expect_done(two_more + Words{"--load", dir})), digest_in(expect_done(two_more)));
}

// Of each kind; a nightly run asks for more.
int kills() {
  const char* text = std::getenv("WEFT_KILLS");
  return text ? std::atoi(text) / 2 : 10;
}

TEST(KilledSaves, of_one_process_leave_a_complete_checkpoint_that_resumes_bit_for_bit) {
  kill_one_at_random_moments(false, kills());
}

TEST(KilledSaves, of_one_process_beside_steps_leave_a_complete_checkpoint_that_resumes_bit_for_bit) {
  kill_one_at_random_moments(true, kills());
}

}  // namespace
}  // namespace weft
