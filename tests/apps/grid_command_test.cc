#include "apps/weft/grid_command.h"

#include <gtest/gtest.h>

#include "tests/apps/in_process.h"

namespace weft {
namespace {

std::string output(const std::vector<std::string>& args) { return output_of(run_grid_command, args); }
std::string message(const std::vector<std::string>& args) { return refusal_of(run_grid_command, args); }

TEST(GridCommand, PrintsJson) {
  EXPECT_EQ(output({"--shape", "tp=2,cp=1,dp=2,pp=2", "--expert", "etp=1,ep=4,edp=1", "--groups", "tp", "--groups",
                    "dp,cp", "--groups", "ep", "--json"}),
            R"({"size":8,"groups":{"tp":[[0,1],[2,3],[4,5],[6,7]],"dp,cp":[[0,2],[1,3],[4,6],[5,7]],)"
            R"("ep":[[0,1,2,3],[4,5,6,7]]}})"
            "\n");
  EXPECT_EQ(output({"--shape=a=2,b=2", "--offset=4", "--groups=b", "--json"}),
            "{\"size\":4,\"groups\":{\"b\":[[4,6],[5,7]]}}\n");
}

TEST(GridCommand, KeepsTheSpellingOfARequest) {
  EXPECT_EQ(output({"--shape", "dp=2", "--expert", "expt_tp=1,expt_dp=2", "--groups", "expt_dp", "--json"}),
            "{\"size\":2,\"groups\":{\"expt_dp\":[[0,1]]}}\n");
}

TEST(GridCommand, ListsEveryAxisWhenNoneIsAsked) {
  EXPECT_EQ(output({"--shape", "dp=2,pp=1", "--expert", "ep=2", "--json"}),
            "{\"size\":2,\"groups\":{\"dp\":[[0,1]],\"pp\":[[0],[1]],\"ep\":[[0,1]]}}\n");
}

TEST(GridCommand, DrawsForAPerson) {
  EXPECT_EQ(output({"--shape=tp=2,dp=2,pp=2", "--expert=ep=4", "--offset=10", "--groups=ep,pp", "--groups=ep"}),
            R"(tp=2 x dp=2 x pp=2: 8 ranks, 10 to 17; tp varies fastest
expert view ep=4 (shared: pp=2)

    rank   tp   dp   pp     ep
      10    0    0    0      0
      11    1    0    0      1
      12    0    1    0      2
      13    1    1    0      3
      14    0    0    1      0
      15    1    0    1      1
      16    0    1    1      2
      17    1    1    1      3

ep,pp: 1 group of 8
  group 0    10 11 12 13 14 15 16 17

ep: 2 groups of 4
  group 0    10 11 12 13
  group 1    14 15 16 17
)");
}

TEST(GridCommand, CutsLongTables) {
  const std::string text = output({"--shape", "tp=32,dp=64", "--groups", "tp"});
  EXPECT_NE(text.find("  ... and 2016 more ranks\n"), std::string::npos);
  EXPECT_NE(text.find("tp: 64 groups of 32\n"), std::string::npos);
  EXPECT_NE(text.find("   15 ... 31\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  ... and 32 more groups (--json lists all)\n"), std::string::npos);
}

TEST(GridCommand, ExplainsItself) {
  const std::string help = output({"--help"});
  EXPECT_EQ(help.rfind("usage: weft grid [flags]\n", 0), 0u) << help;
  for (const char* part : {"--shape AXES", "--expert AXES", "--groups NAMES", "--offset N", "--world-size N", "--json"})
    EXPECT_NE(help.find(part), std::string::npos) << part << " is missing in\n" << help;
}

TEST(GridCommand, RefusesWrongRequests) {
  EXPECT_EQ(message({}), "--shape is missing: which axes does the grid have? Try --shape tp=2,dp=4");
  EXPECT_EQ(
      message({"tp=2"}),
      "unexpected argument 'tp=2': the axes are given by --shape, the expert view by --expert, groups by --groups");
  EXPECT_EQ(message({"-x"}), "unknown flag -x; weft grid --help lists all flags");
  EXPECT_EQ(message({"--group", "tp"}), "unknown flag --group; did you mean --groups?");
  EXPECT_EQ(message({"--shape", "tp=2", "--offset", "-1"}), "--offset: -1 is out of range; it must be at least 0");
  EXPECT_EQ(message({"--shape", "tp=2", "--offset", "one"}), "--offset: 'one' is not a whole number");
  EXPECT_EQ(message({"--shape", "tp=2", "--shape", "dp=2"}),
            "--shape is given twice with different values: tp=2 and dp=2; keep one");
  EXPECT_EQ(message({"--shape", "tp=4", "--world-size", "2"}),
            "the grid needs ranks 0 to 3 (tp = 4), but the world has only 2 ranks");
  EXPECT_EQ(message({"--shape", "tp=2", "--groups", "tp,"}),
            "there is no axis '': the grid has tp and no expert view (did you mean 'tp'?)");
}

}  // namespace
}  // namespace weft
