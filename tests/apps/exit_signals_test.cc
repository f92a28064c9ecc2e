// --exit-signal-handler where ranks are processes: a signal to one of them, or to all, ends the run of all with a checkpoint
// and exit code 0.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "tests/apps/weft_process.h"
#include "tests/comm/rank_processes.h"
#include "weft/base/file.h"
#include "weft/base/text.h"
#include "weft/checkpoint/find_checkpoint.h"
#include "weft/checkpoint/run_checkpoint.h"
#include "weft/comm/mpi_world.h"

namespace weft {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

const std::string program = WEFT_BINARY_DIR "/weft";

// False after half a minute.
bool wait_until(const std::function<bool()>& happened) {
  for (int i = 0; i < 30'000 && !happened(); ++i) std::this_thread::sleep_for(1ms);
  return happened();
}

bool has_text(const std::string& file) {
  std::error_code error;
  const auto size = std::filesystem::file_size(file, error);
  return !error && size > 0;
}

// Whether a checkpoint is being written, or complete.
bool saves(const std::string& dir) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error))
    if (entry.path().filename().string().starts_with("iter_")) return true;
  return false;
}

std::string digest_in(const std::string& output) {
  const std::size_t at = output.find("digest");
  return at == std::string::npos ? "none in: " + output : output.substr(at, output.find('\n', at) - at);
}

class ExitSignals : public testing::Test {
 protected:
  // Of an endless run, unless `further` says something else.
  Words run(const Words& further) const {
    return Words{"train", "--device", "cpu"} + tiny_model +
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
                 "2"} +
           further;
  }
  Words until_signal(const Words& further) const {
    return run(Words{"--exit-signal-handler", "--save", dir_, "--metrics", metrics_} + further);
  }
  void SetUp() override {
    std::filesystem::remove_all(dir_);
    std::filesystem::remove(metrics_);
  }

  // It has taken a step; and where it saves beside steps, it does.
  bool trains(const Words& words) const {
    return has_text(metrics_) && (std::find(words.begin(), words.end(), "--async-save") == words.end() || saves(dir_));
  }

  // The run stopped for the signal, its checkpoint is that of its last step, and all that it saved are complete.
  void expect_saved(const std::string& output, int signal) const {
    const std::optional<std::int64_t> last = latest_checkpoint(dir_);
    ASSERT_TRUE(last) << output;
    EXPECT_THAT(output, HasSubstr(fmt::format("stopped after iteration {}: {}\n", *last,
                                              signal == SIGINT ? "SIGINT" : "SIGTERM")));
    for (const std::int64_t iteration : checkpoints_in(dir_))
      RunCheckpoint(checkpoint_folder(dir_, iteration)).verify();
    for (const auto& entry : std::filesystem::directory_iterator(dir_))
      EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
  }
  // Two steps after the checkpoint, weights are those of a run that was never stopped.
  void expect_resumes() const {
    const std::string end = std::to_string(*latest_checkpoint(dir_) + 2);
    const Words two_more = run({"--ranks", "2", "--exit-interval", end});
    EXPECT_EQ(digest_in(expect_done(two_more + Words{"--load", dir_})), digest_in(expect_done(two_more)));
  }

  TemporaryFolder folder_;
  const std::string dir_ = folder_.file("run"), metrics_ = folder_.file("metrics");
};

const Words beside_steps = {"--save-interval", "1", "--async-save", "--keep-last", "3"};

class TcpExitSignals : public ExitSignals {
 protected:
  // Two ranks, which `then` is done to once they train.
  std::vector<EndedProcess> end_with(const Words& words, const std::function<void(RankProcesses&)>& then) const {
    const int port = free_port();
    RankProcesses processes;
    for (const int rank : {0, 1}) processes.start(Words{program} + words, torchrun_variables(rank, 2, port));
    EXPECT_TRUE(wait_until([&] { return trains(words); }));
    then(processes);
    return processes.wait();
  }
};

struct Signalled {
  int signal;
  std::vector<std::size_t> ranks;
  bool beside;  // saves are under way when it comes
};

TEST_F(TcpExitSignals, OfOneRankOrAllSaveAndExitWithZero) {
  const Signalled cases[] = {{SIGTERM, {0}, false}, {SIGTERM, {1}, true},    {SIGTERM, {0, 1}, true},
                             {SIGINT, {1}, false},  {SIGINT, {0, 1}, false}, {SIGINT, {0}, true}};
  for (const Signalled& c : cases) {
    SetUp();
    SCOPED_TRACE(
        fmt::format("signal {}, {} rank(s) from {} on, beside {}", c.signal, c.ranks.size(), c.ranks[0], c.beside));
    const auto ended = end_with(until_signal(c.beside ? beside_steps : Words{}), [&](RankProcesses& processes) {
      for (const std::size_t rank : c.ranks) processes.signal(rank, c.signal);
    });
    for (const EndedProcess& each : ended) EXPECT_EQ(each.code, 0) << each.output;
    expect_saved(ended[0].output, c.signal);
    EXPECT_EQ(ended[1].output, "");
    EXPECT_GT(checkpoints_in(dir_).size(), c.beside ? 1u : 0u);
    if (c.ranks.size() == 2) expect_resumes();
  }
}

// The signal that another rank has ended the run for already, and both kinds at once, are one request.
TEST_F(TcpExitSignals, ThatComeLateOrTogetherAreOneRequest) {
  const auto ended = end_with(until_signal({}), [&](RankProcesses& processes) {
    processes.signal(0, SIGSTOP);
    processes.signal(0, SIGINT);
    processes.signal(0, SIGTERM);
    processes.signal(0, SIGCONT);
    EXPECT_TRUE(wait_until([&] { return saves(dir_); }));
    processes.signal(1, SIGTERM);
  });
  for (const EndedProcess& each : ended) EXPECT_EQ(each.code, 0) << each.output;
  expect_saved(ended[0].output, SIGTERM);
}

// A second one ends its process at once, wherever the save has come to; the others notice.
TEST_F(TcpExitSignals, SecondOnesDamageNothing) {
  for (const bool beside : {false, true}) {
    SetUp();
    expect_done(run({"--ranks", "2", "--exit-interval", "3", "--save", dir_}));
    for (int i = 0; i < 4; ++i) {
      SCOPED_TRACE(fmt::format("beside {}, {}", beside, i));
      std::filesystem::remove(metrics_);
      const auto rank = static_cast<std::size_t>(i % 2);
      const Words words = until_signal(Words{"--load", dir_} + (beside ? beside_steps : Words{}));
      const auto ended = end_with(words, [&](RankProcesses& processes) {
        processes.signal(rank, SIGTERM);
        std::this_thread::sleep_for(1ms * (1 << (2 * i)));
        processes.signal(rank, SIGTERM);
      });
      EXPECT_THAT(ended[rank].code, testing::AnyOf(0, 128 + SIGTERM)) << ended[rank].output;
      // At the very end the other may have finished already.
      const EndedProcess& other = ended[1 - rank];
      EXPECT_TRUE(other.code == 0 || (other.code == 1 && ended[rank].code != 0)) << other.code << other.output;
      for (const std::int64_t iteration : checkpoints_in(dir_))
        RunCheckpoint(checkpoint_folder(dir_, iteration)).verify();
      EXPECT_GE(*latest_checkpoint(dir_), 3);
    }
    expect_resumes();
  }
}

TEST_F(TcpExitSignals, WithoutTheFlagEndTheRunWithAReport) {
  const auto ended = end_with(run({"--save", dir_, "--metrics", metrics_}),
                              [](RankProcesses& processes) { processes.signal(1, SIGTERM); });
  EXPECT_EQ(ended[1].code, 1);
  EXPECT_TRUE(ended[1].printed("weft: rank 1 got SIGTERM and stops. It was at: ")) << ended[1].output;
  EXPECT_EQ(ended[0].code, 1);
  EXPECT_TRUE(ended[0].printed("rank 1 failed: got SIGTERM")) << ended[0].output;
  EXPECT_FALSE(saves(dir_));
}

class MpiExitSignals : public ExitSignals {
 protected:
  void SetUp() override {
    if (std::system("command -v mpirun > /dev/null") != 0) GTEST_SKIP() << "mpirun is not installed";
    if (mpi_version().starts_with("not built in")) GTEST_SKIP() << "MPI is " << mpi_version();
    ExitSignals::SetUp();
    for (const int rank : {0, 1}) std::filesystem::remove(id_file(rank));
  }
  std::string id_file(int rank) const { return folder_.file(fmt::format("id.{}", rank)); }

  // Each rank writes its process's id before it becomes weft.
  EndedProcess end_with(const Words& words, const std::vector<std::size_t>& ranks, int signal) const {
    RankProcesses mpirun;
    const std::string script = fmt::format("echo $$ > {}.$OMPI_COMM_WORLD_RANK; exec \"$@\"", folder_.file("id"));
    mpirun.start(Words{"/usr/bin/env", "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", "sh", "-c",
                       script, "sh", program} +
                     words,
                 {});
    EXPECT_TRUE(wait_until([&] { return trains(words); }));
    for (const std::size_t rank : ranks) {
      std::int64_t id = 0;
      const std::string text = read_file(id_file(static_cast<int>(rank)));
      EXPECT_TRUE(parse_int(text.substr(0, text.find('\n')), id)) << text;
      if (id > 0) ::kill(static_cast<pid_t>(id), signal);
    }
    return mpirun.wait()[0];
  }
};

TEST_F(MpiExitSignals, OfOneRankOrAllSaveAndExitWithZero) {
  const Signalled cases[] = {
      {SIGTERM, {1}, false}, {SIGTERM, {0, 1}, true}, {SIGINT, {0}, true}, {SIGINT, {0, 1}, false}};
  for (const Signalled& c : cases) {
    SetUp();
    SCOPED_TRACE(
        fmt::format("signal {}, {} rank(s) from {} on, beside {}", c.signal, c.ranks.size(), c.ranks[0], c.beside));
    const EndedProcess ended = end_with(until_signal(c.beside ? beside_steps : Words{}), c.ranks, c.signal);
    EXPECT_EQ(ended.code, 0) << ended.output;
    expect_saved(ended.output, c.signal);
    if (c.ranks[0] == 1) expect_resumes();
  }
}

TEST_F(MpiExitSignals, WithoutTheFlagEndTheRunWithAReport) {
  const EndedProcess ended = end_with(run({"--save", dir_, "--metrics", metrics_}), {1}, SIGTERM);
  EXPECT_NE(ended.code, 0);
  EXPECT_TRUE(ended.printed("weft: rank 1 got SIGTERM and stops. It was at: ")) << ended.output;
  EXPECT_FALSE(saves(dir_));
}

}  // namespace
}  // namespace weft
