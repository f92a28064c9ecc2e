// The MPI world, tested by starting tests/comm/processes/comm_ranks under mpirun. Nothing here may hang: `timeout` ends
// a process that does, with exit code 124.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>
#include <sys/wait.h>

#include "weft/base/text.h"
#include "weft/comm/mpi_world.h"

namespace weft {
namespace {

struct Ran {
  int code = 0;
  std::string output;  // both streams

  bool printed(const std::string& text) const { return output.find(text) != std::string::npos; }
  // The lines that begin with "rank ", sorted by rank.
  std::vector<std::string> rank_lines() const {
    std::vector<std::string> lines;
    for (const std::string& line : split(output, '\n'))
      if (line.starts_with("rank ")) lines.push_back(line);
    std::ranges::sort(lines);
    return lines;
  }
};

Ran run(const std::string& command) {
  Ran ran;
  // Sanitizers report memory that MPI keeps as leaks.
  FILE* pipe = popen(("export ASAN_OPTIONS=detect_leaks=0; " + command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return {-1, "popen failed"};
  char buffer[4096];
  while (const std::size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) ran.output.append(buffer, n);
  const int status = pclose(pipe);
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ran;
}

const std::string program = WEFT_BINARY_DIR "/comm_ranks";

class Mpi : public testing::Test {
 protected:
  void SetUp() override {
    if (mpi_version().starts_with("not built in")) GTEST_SKIP() << "MPI is " << mpi_version();
    if (std::system("command -v mpirun > /dev/null") != 0) GTEST_SKIP() << "mpirun is not installed";
  }

  static Ran mpirun(int ranks, const std::string& mode) {
    return run(fmt::format("timeout 60 mpirun --allow-run-as-root --oversubscribe -n {} {} {}", ranks, program, mode));
  }
  static Ran local(int ranks, const std::string& mode) {
    return run(fmt::format("timeout 60 {} {} {}", program, mode, ranks));
  }
};

TEST_F(Mpi, AgreesWithLocalBitForBit) {
  for (const int ranks : {3, 4}) {
    const Ran mpi = mpirun(ranks, "collectives"), threads = local(ranks, "collectives");
    EXPECT_EQ(mpi.code, 0) << mpi.output;
    EXPECT_EQ(mpi.rank_lines().size(), static_cast<std::size_t>(ranks)) << mpi.output;
    EXPECT_EQ(mpi.rank_lines(), threads.rank_lines());
  }
}

TEST_F(Mpi, LanesAtOnceAgreeWithLocal) {
  const Ran mpi = mpirun(4, "lanes"), threads = local(4, "lanes");
  EXPECT_EQ(mpi.code, 0) << mpi.output;
  EXPECT_EQ(mpi.rank_lines().size(), 4u);
  EXPECT_EQ(mpi.rank_lines(), threads.rank_lines());
}

TEST_F(Mpi, LargeMessages) {
  const Ran ran = mpirun(3, "large");
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_EQ(ran.rank_lines().size(), 3u);
}

TEST_F(Mpi, WaitingUsesLittleCpuTime) {
  const Ran ran = mpirun(2, "idle");
  EXPECT_EQ(ran.code, 0) << ran.output;
  double seconds = -1;  // of rank 0, which waits 1.5 s for rank 1
  for (const std::string& line : ran.rank_lines())
    if (line.starts_with("rank 0: processor ")) parse_double(split(line, ' ')[3], seconds);
  EXPECT_GE(seconds, 0) << ran.output;
  EXPECT_LT(seconds, 0.15) << ran.output;
}

TEST_F(Mpi, AnExceptionOnOneRankEndsAllWithItsMessage) {
  const Ran ran = mpirun(4, "abort");
  EXPECT_NE(ran.code, 0);
  EXPECT_NE(ran.code, 124) << "it hung";
  EXPECT_EQ(ran.rank_lines(), (std::vector<std::string>{"rank 0: error: rank 2 failed: the loss is a potato",
                                                        "rank 1: error: rank 2 failed: the loss is a potato",
                                                        "rank 2: error: the loss is a potato",
                                                        "rank 3: error: rank 2 failed: the loss is a potato"}));
}

TEST_F(Mpi, WrongCountsNameBothRanks) {
  const Ran more = mpirun(4, "counts"), less = mpirun(4, "counts_less");
  EXPECT_EQ(more.code, 1) << more.output;
  EXPECT_TRUE(more.printed(
      "rank 2: error: all_to_all (call 1) of group 'ep': rank 1 sends 5 elements to rank 2, which expects 2"))
      << more.output;
  EXPECT_EQ(less.code, 1) << less.output;
  EXPECT_TRUE(less.printed(
      "rank 2: error: all_to_all (call 1) of group 'ep': rank 1 sends 0 elements to rank 2, which expects 2"))
      << less.output;
}

TEST_F(Mpi, DifferentGroupsAreNoticed) {
  const Ran ran = mpirun(2, "groups");
  EXPECT_EQ(ran.code, 1) << ran.output;
  EXPECT_TRUE(ran.printed("rank 1 makes group 'gather' of 2 ranks while rank 0 makes group 'reduce' of 2"))
      << ran.output;
}

TEST_F(Mpi, AStalledRankIsReportedWithWhatEachRankIsDoing) {
  const Ran ran = mpirun(4, "stall");
  EXPECT_EQ(ran.code, 1) << ran.output;
  EXPECT_TRUE(ran.printed("in all_reduce (call 2) of group 'dp' for rank 2 (the timeout is 0.7 s)")) << ran.output;
  EXPECT_TRUE(ran.printed("\n  rank 2: micro-batch 2, layer 2\n")) << ran.output;
  for (const int rank : {0, 1, 3})
    EXPECT_TRUE(ran.printed(fmt::format("\n  rank {0}: micro-batch {0}, layer 2; in all_reduce (call 2)", rank)))
        << ran.output;
}

TEST_F(Mpi, ARankThatIsBusyAtTheEndIsWaitedFor) {
  const Ran ran = mpirun(3, "late");
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_EQ(ran.rank_lines(), (std::vector<std::string>{"rank 0: done", "rank 1: done", "rank 2: done"}));
}

TEST_F(Mpi, AKilledRankIsNamedAndTheOthersReportWhatTheyWereDoing) {
  const Ran ran = mpirun(4, "kill");
  EXPECT_EQ(ran.code, 137) << ran.output;
  EXPECT_TRUE(ran.printed("process rank 1 with PID")) << ran.output;  // mpirun's line
  EXPECT_TRUE(ran.printed("exited on signal 9")) << ran.output;
  for (const int rank : {0, 2, 3})
    EXPECT_TRUE(
        ran.printed(fmt::format("weft: rank {0} got SIGTERM and stops. It was at: micro-batch {0}, layer 3; in "
                                "barrier (call 2) of group 'dp'",
                                rank)))
        << ran.output;
}

TEST_F(Mpi, ALauncherThatMpiDoesNotKnow) {
  // Variables of a launcher whose processes MPI does not know.
  const Ran ran = run("timeout 60 env PMI_RANK=0 PMI_SIZE=2 " + program + " collectives");
  EXPECT_EQ(ran.code, 1) << ran.output;
  EXPECT_TRUE(ran.printed("the launcher calls this rank 0 of 2, MPI calls it rank 0 of 1")) << ran.output;
}

TEST_F(Mpi, TheProgramItselfDoesNotNeedMpi) {
  const Ran libraries = run("ldd " + program);
  EXPECT_TRUE(libraries.printed("libc.so"));
  EXPECT_FALSE(libraries.printed("libmpi"));
  const std::filesystem::path folder = testing::TempDir() + "/weft_without_module";
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(program, folder / "comm_ranks", std::filesystem::copy_options::overwrite_existing);
  const std::string copy = (folder / "comm_ranks").string();
  EXPECT_EQ(run(copy + " large 2").code, 0);
  const Ran without = run("env PMI_RANK=0 PMI_SIZE=2 " + copy + " large");
  EXPECT_EQ(without.code, 1) << without.output;
  EXPECT_TRUE(without.printed("cannot load MPI: ")) << without.output;
  EXPECT_TRUE(without.printed(
      "(this is rank 0 of 2, started by mpiexec (PMI); ranks that are threads, --ranks N, need no MPI)"))
      << without.output;
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace weft
