// `weft pattern`, `weft grid` and `weft devices`.
#include <nlohmann/json.hpp>

#include "tests/apps/weft_process.h"
#include "weft/base/json.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

TEST(ExplainPattern, PrintsJson) {
  const Json expected = parse_json(
      R"({"pattern": "M[*E]|M-/[*E]", "main": "M[*E]|M-", "mtp": "[*E]", "mtp_depths": 1, "physical_layers": 5,
          "logical_layers": 4, "counts": {"M": 2, "G": 0, "*": 2, "D": 0, "+": 0, "-": 1, "E": 2},
          "segments": [
            {"index": 0, "pp_rank": 0, "virtual_stage": 0, "text": "M[*E]", "physical_offset": 0, "logical_offset": 0,
             "layers": [{"logical": 0, "symbols": "M", "physical": [0]},
                        {"logical": 1, "symbols": "*E", "physical": [1, 2]}]},
            {"index": 1, "pp_rank": 1, "virtual_stage": 0, "text": "M-", "physical_offset": 3, "logical_offset": 2,
             "layers": [{"logical": 2, "symbols": "M", "physical": [3]},
                        {"logical": 3, "symbols": "-", "physical": [4]}]}]})",
      "expected");
  EXPECT_EQ(expect_done({"pattern", "M[*E]|M-/[*E]", "--pp", "2", "--json"}), expected.dump() + "\n");
}

TEST(ExplainPattern, DrawsWithoutIt) {
  EXPECT_THAT(expect_done({"pattern", "M[*E]|M-/[*E]", "--pp", "2"}),
              ::testing::AllOf(HasSubstr("4 layers (5 physical) in 2 segments on 2 pipeline ranks"),
                               HasSubstr("MTP, after the last segment, each depth: [*E]")));
}

TEST(ExplainPattern, PointsAtTheMistake) {
  expect_refused({"pattern", "M[*"},
                 {"bad pattern: '[' without ']': put ']' after the group's last symbol\n  M[*\n   ^\n"});
  expect_refused({"pattern", "M*]"}, {"bad pattern: ", "\n  M*]\n    ^\n"});
  expect_refused({"pattern", "M[]"}, {"bad pattern: ", "\n  M[]\n    ^\n"});
  expect_refused({"pattern", "[*[E]]"}, {"bad pattern: ", "\n  [*[E]]\n    ^\n"});
  expect_refused({"pattern", "[E*]"}, {"bad pattern: ", "\n  [E*]\n   ^\n"});
  expect_refused({"pattern", "[*|E]"}, {"bad pattern: ", "\n  [*|E]\n    ^\n"});
  expect_refused({"pattern", "M*X-"}, {"bad pattern: ", "\n  M*X-\n    ^\n"});
  expect_refused({"pattern", "M/[*E]/[*-]"}, {"bad pattern: ", "\n  M/[*E]/[*-]\n"});
  expect_refused({"pattern", "*+"}, {"bad pattern: ", "\n  *+\n   ^\n"});
  expect_refused({"pattern", "*|*|*", "--pp", "2"}, {"3 segments cannot be spread over 2 pipeline ranks"});
  expect_refused({"pattern", "***", "--pp", "2"}, {"3 layers do not divide over 2 pipeline ranks", "\n  ***\n    ^\n"});
  expect_refused({"pattern"}, {"PATTERN is missing; usage: weft pattern PATTERN [flags]"});
  expect_refused({"pattern", "*", "README.md"}, {"unexpected argument 'README.md'", "put it in single quotes"});
}

TEST(ExplainPattern, PointsAtTheMistakeWhereTrainingStarts) {
  expect_refused({"train", "--pattern", "M[*"},
                 {"the configuration has a problem:\n  - --pattern: bad pattern: '[' without ']': put ']' "
                  "after the group's last symbol\n      M[*\n       ^\n"});
}

TEST(ExplainGrid, PrintsJson) {
  EXPECT_EQ(expect_done({"grid", "--shape", "tp=2,cp=1,dp=2,pp=2", "--expert", "etp=1,ep=4,edp=1", "--groups", "tp",
                         "--groups", "dp,cp", "--groups", "ep", "--json"}),
            R"({"size":8,"groups":{"tp":[[0,1],[2,3],[4,5],[6,7]],"dp,cp":[[0,2],[1,3],[4,6],[5,7]],)"
            R"("ep":[[0,1,2,3],[4,5,6,7]]}})"
            "\n");
}

TEST(ExplainGrid, RefusesWhatIsNoGrid) {
  expect_refused(
      {"grid", "--shape", "tp=2,dp=2", "--expert", "ep=3"},
      {"the expert view does not cover the grid's ranks: ep = 3, but tp*dp = 2*2 = 4; the products must be"});
  expect_refused({"grid", "--shape", "tp=2,tp=2"}, {"the grid names axis 'tp' twice"});
  expect_refused({"grid", "--shape", "tp=0"}, {"axis 'tp' of the grid has size 0: sizes are at least 1"});
  expect_refused({"grid", "--shape", "tp:2"}, {"write each axis as name=size, as in tp=2,dp=4\n  tp:2\n      ^\n"});
  expect_refused({"grid", "--shape", "tp=2", "--groups", "pp"}, {"there is no axis 'pp': the grid has tp"});
  expect_refused({"grid", "--shape", "tp=2", "--expert", "ep=2", "--groups", "tp,ep"},
                 {"axes 'tp' and 'ep' belong to different views"});
  expect_refused({"grid", "--shape", "tp=4", "--world-size", "2"}, {"the world has only 2 ranks"});
  expect_refused({"grid"}, {"--shape is missing", "Try --shape tp=2,dp=4"});
}

TEST(ExplainDevices, PrintsJson) {
  const Json found = parse_json(expect_done({"devices", "--json"}), "devices");
  const Json& cpu = found.at("devices").at(0);
  EXPECT_EQ(cpu.at("name"), "cpu");
  EXPECT_GE(cpu.at("cores").get<int>(), 1);
  EXPECT_FALSE(cpu.at("operations").empty());
  EXPECT_THAT(expect_done({"devices"}), HasSubstr("cpu"));
}

}  // namespace
}  // namespace weft
