// Reordering never changes a number: plain = woven = delayed = with late updates = parallel = serial, on thread ranks and under MPI, in every
// loss and every weight after five steps.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include <gtest/gtest.h>
#include <sys/wait.h>

#include "tests/execute/bitwise_cases.h"
#include "weft/comm/mpi_world.h"

namespace weft {
namespace {

std::set<std::string> plain_lines(const NamedCase& c) {
  const std::vector<std::string> lines = lines_of(c.name, run_ranks(c.run));
  return {lines.begin(), lines.end()};
}

class Bitwise : public testing::TestWithParam<int> {};

TEST_P(Bitwise, every_order_and_executor_gives_the_bits_of_the_plain_serial_one) {
  for (const NamedCase& c : bitwise_cases(GetParam())) {
    const std::set<std::string> plain = plain_lines(c);
    for (const auto& [weave, delay, overlap, parallel] : {std::tuple{false, false, false, true},
                                                          {true, false, true, false},
                                                          {true, true, false, true},
                                                          {false, true, true, true}}) {
      NamedCase other = c;
      other.run.weave = weave;
      other.run.delay = delay;
      other.run.dispatch = !weave;
      other.run.overlap_updates = overlap;
      other.run.parallel = parallel;
      EXPECT_EQ(plain_lines(other), plain)
          << "weave " << weave << " delay " << delay << " overlap " << overlap << " parallel " << parallel;
    }
  }
}

TEST_P(Bitwise, mpi_gives_the_bits_of_threads) {
  if (mpi_version().starts_with("not built in")) GTEST_SKIP() << "MPI is " << mpi_version();
  if (std::system("command -v mpirun > /dev/null") != 0) GTEST_SKIP() << "mpirun is not installed";
  if (GetParam() == 1) GTEST_SKIP() << "one rank needs no communicator";
  std::set<std::string> want, got;
  for (const NamedCase& c : bitwise_cases(GetParam())) want.merge(plain_lines(c));
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / fmt::format("bits{}", GetParam());
  std::filesystem::create_directories(folder);
  const std::string command =
      fmt::format("ASAN_OPTIONS=detect_leaks=0 timeout 120 mpirun --allow-run-as-root --oversubscribe -n {} {} {} 2>&1",
                  GetParam(), WEFT_BINARY_DIR "/train_ranks", (folder / "rank").string());
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  char buffer[4096];
  while (const std::size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) output.append(buffer, n);
  const int status = pclose(pipe);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << output.substr(0, 4000);
  for (int rank = 0; rank < GetParam(); ++rank) {
    std::ifstream in(folder / fmt::format("rank.{}", rank));
    for (std::string line; std::getline(in, line);) got.insert(line);
  }
  std::filesystem::remove_all(folder);
  EXPECT_EQ(got, want);
}

INSTANTIATE_TEST_SUITE_P(OnRanks, Bitwise, testing::Values(1, 2, 4), testing::PrintToStringParamName());

TEST(BitwiseCases, are_at_least_thirty) {
  std::size_t count = 0;
  for (int ranks : {1, 2, 4}) count += bitwise_cases(ranks).size();
  EXPECT_GE(count, 30u);
}

}  // namespace
}  // namespace weft
