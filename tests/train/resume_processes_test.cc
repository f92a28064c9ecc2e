// A run whose ranks are processes goes on from each of its steps as a straight one on thread ranks, bit for bit.
#include <cstdlib>

#include <gtest/gtest.h>

#include "tests/comm/rank_processes.h"
#include "tests/data/temporary_folder.h"
#include "tests/train/resumed_runs.h"
#include "weft/base/text.h"
#include "weft/comm/mpi_world.h"

namespace weft {
namespace {

const std::string program = WEFT_BINARY_DIR "/resume_ranks";

// As a straight run on thread ranks has them.
std::vector<std::string> straight(int ranks) {
  std::vector<std::string> lines;
  for (const ResumedCase& c : resumed_cases(ranks))
    for (const std::string& line : on_thread_ranks(c.run, [&](World* world) { return straight_lines(c, world); }))
      lines.push_back(line);
  return lines;
}

std::vector<std::string> lines_in(const EndedProcess& ended) {
  EXPECT_EQ(ended.code, 0) << ended.output;
  std::vector<std::string> lines = split(ended.output, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

class ResumeOverMpi : public testing::TestWithParam<int> {};

TEST_P(ResumeOverMpi, IsBitForBitAtEveryStep) {
  if (mpi_version().starts_with("not built in")) GTEST_SKIP() << "MPI is " << mpi_version();
  if (std::system("command -v mpirun > /dev/null") != 0) GTEST_SKIP() << "mpirun is not installed";
  const TemporaryFolder folder;
  RankProcesses mpirun;
  mpirun.start({"/usr/bin/env", "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", std::to_string(GetParam()),
                program, folder.file("runs")},
               {{"ASAN_OPTIONS", "detect_leaks=0"}});
  EXPECT_EQ(lines_in(mpirun.wait()[0]), straight(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Ranks, ResumeOverMpi, testing::Values(2, 4), testing::PrintToStringParamName());

TEST(ResumeOverTcp, IsBitForBitAtEveryStep) {
  const TemporaryFolder folder;
  const auto ended = run_on_ranks(2, {program, folder.file("runs")});
  EXPECT_EQ(ended[1].code, 0) << ended[1].output;
  EXPECT_EQ(lines_in(ended[0]), straight(2));
}

}  // namespace
}  // namespace weft
