// Faults under mpirun, as a user would meet them: the run ends soon, and reports what every rank was doing.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>
#include <sys/wait.h>

#include "tests/apps/weft_process.h"
#include "weft/comm/mpi_world.h"

namespace weft {
namespace {

struct Ended {
  int code = -1;
  double seconds = 0;
  std::string output;  // both streams of all ranks
};

Ended mpirun_with(const std::string& fault) {
  const std::string command = fmt::format(
      "ASAN_OPTIONS=detect_leaks=0 timeout 60 mpirun --allow-run-as-root --oversubscribe -n 2 {}/weft train "
      "--pattern '[*E][*E]' --hidden-size 32 --ffn-hidden-size 32 --num-experts 4 --seq-length 16 --micro-batch-size 1 "
      "--global-batch-size 4 --train-iters 3 --eval-iters 0 --stories 20000 --threads 1 --expert-model-parallel-size 2 "
      "--overlap-moe-expert-parallel-comm --distributed-timeout-minutes 0.03 --inject-fault {}",
      WEFT_BINARY_DIR, fault);
  const auto begin = std::chrono::steady_clock::now();
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  Ended ended;
  if (pipe == nullptr) return ended;
  char buffer[4096];
  while (const std::size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) ended.output.append(buffer, n);
  const int status = pclose(pipe);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  ended.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return ended;
}

class MpiFaults : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "ThreadSanitizer does not understand MPI";
#endif
    if (std::system("command -v mpirun > /dev/null") != 0) GTEST_SKIP() << "mpirun is not installed";
    if (mpi_version().starts_with("not built in")) GTEST_SKIP() << "MPI is " << mpi_version();
  }
};

void expect_ends(const std::string& fault, std::initializer_list<const char*> parts) {
  const Ended ended = mpirun_with(fault);
  EXPECT_NE(ended.code, 0) << fault;
  EXPECT_NE(ended.code, 124) << fault << " hangs";
  EXPECT_LT(ended.seconds, 30) << fault;
  for (const char* part : parts)
    EXPECT_NE(ended.output.find(part), std::string::npos) << fault << " without '" << part << "':\n" << ended.output;
}

TEST_F(MpiFaults, AnErrorNamesRankAndNodeOnAllRanks) {
  expect_ends("error@20:1", {"rank 1, node 20, ", "injected fault", "rank 0: rank 1 failed"});
}

TEST_F(MpiFaults, AStallSaysWhereEveryRankStands) {
  expect_ends("stall@20:1", {"What each rank is doing", "rank 0", "rank 1"});
}

TEST_F(MpiFaults, AKilledRankEndsTheOthersWithTheirPlaces) {
  expect_ends("kill@20:1", {"rank 0 got SIGTERM", "It was at: "});
}

TEST_F(MpiFaults, WrongCountsNameBothSides) {
  expect_ends("counts@3:1", {"rank 1, node 3, ", "all_to_all", "which expects"});
}

}  // namespace
}  // namespace weft
