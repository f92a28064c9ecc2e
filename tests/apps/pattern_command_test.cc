#include "apps/weft/pattern_command.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apps/in_process.h"

namespace weft {
namespace {

std::string output(const std::vector<std::string>& args) { return output_of(run_pattern_command, args); }
std::string message(const std::vector<std::string>& args) { return refusal_of(run_pattern_command, args); }

TEST(PatternCommand, PrintsJson) {
  const std::string expected = R"({"pattern": "M[*E]|M-/[*E]", "main": "M[*E]|M-", "mtp": "[*E]", "mtp_depths": 1,
    "physical_layers": 5, "logical_layers": 4,
    "counts": {"M": 2, "G": 0, "*": 2, "D": 0, "+": 0, "-": 1, "E": 2},
    "segments": [
      {"index": 0, "pp_rank": 0, "virtual_stage": 0, "text": "M[*E]", "physical_offset": 0, "logical_offset": 0,
       "layers": [{"logical": 0, "symbols": "M", "physical": [0]}, {"logical": 1, "symbols": "*E", "physical": [1, 2]}]},
      {"index": 1, "pp_rank": 1, "virtual_stage": 0, "text": "M-", "physical_offset": 3, "logical_offset": 2,
       "layers": [{"logical": 2, "symbols": "M", "physical": [3]}, {"logical": 3, "symbols": "-", "physical": [4]}]}]})";
  // Text against text: the order of the keys counts.
  EXPECT_EQ(output({"M[*E]|M-/[*E]", "--pp", "2", "--json"}), nlohmann::ordered_json::parse(expected).dump() + "\n");
}

TEST(PatternCommand, DrawsForAPerson) {
  EXPECT_EQ(output({"M[*E]|MM*-M|MMG[*E]|/[*E]M/[*E]M", "--pp=2"}), R"(M[*E]|MM*-M|MMG[*E]|/[*E]M/[*E]M

  main   11 layers (13 physical) in 4 segments on 2 pipeline ranks, 2 virtual stages each
  MTP    2 depths of [*E]M
  kinds  8 M Mamba-2, 1 G gated delta net, 5 * attention, 1 - MLP, 4 E mixture of experts

pipeline rank 0
  virtual stage 0, segment 0: M[*E]
    unit  items  layer    physical
       0  M      0        0         Mamba-2
       1  [*E]   1        1-2       attention, mixture of experts
  virtual stage 1, segment 2: MMG[*E]
    unit  items  layer    physical
       0  MMG    7-9      8-10      Mamba-2 x2, gated delta net
       1  [*E]   10       11-12     attention, mixture of experts

pipeline rank 1
  virtual stage 0, segment 1: MM*-M
    unit  items  layer    physical
       0  MM*-   2-5      3-6       Mamba-2 x2, attention, MLP
       1  M      6        7         Mamba-2
  virtual stage 1, segment 3: empty
    (no layers)

MTP, after the last segment, each depth: [*E]M
    unit  items  layer    physical
       0  [*E]   0        0-1       attention, mixture of experts
       1  M      1        2         Mamba-2
)");
}

TEST(PatternCommand, MakesThePatternOfATransformer) {
  const auto pattern_of = [](const std::vector<std::string>& args) {
    return std::string(nlohmann::json::parse(output(args))["pattern"]);
  };
  EXPECT_EQ(pattern_of({"--num-layers", "2", "--json"}), "[*-][*-]");
  EXPECT_EQ(pattern_of({"--num-layers", "3", "--num-experts", "8", "--moe-layer-freq", "[0]+[1]*2", "--mtp-num-layers",
                        "1", "--multi-latent-attention", "--json"}),
            "[+-][+E][+E]/[+E]");
}

TEST(PatternCommand, TakesPatternsThatLookLikeFlags) {
  for (const char* text : {"-", "--", "-E", "--E", "---"})
    EXPECT_EQ(nlohmann::json::parse(output({text, "--json"}))["main"], text);
}

TEST(PatternCommand, PassesSplitsOn) {
  const auto json = nlohmann::json::parse(
      output({"--first-stage-layers", "1", "M*M*M*M*", "--last-stage-layers=1", "--pp", "4", "--json"}));
  std::vector<std::string> texts;
  for (const auto& segment : json["segments"]) texts.push_back(segment["text"]);
  EXPECT_EQ(texts, (std::vector<std::string>{"M", "*M*", "M*M", "*"}));
}

TEST(PatternCommand, ExplainsItself) {
  for (const char* flag : {"--help", "-h"}) {
    const std::string help = output({"M", flag});
    EXPECT_EQ(help.rfind("usage: weft pattern [PATTERN] [flags]\n", 0), 0u) << help;
    for (const char* part :
         {"--pp N", "--first-stage-layers N", "--last-stage-layers N", "--json", "D sparse attention"})
      EXPECT_NE(help.find(part), std::string::npos) << part << " is missing in\n" << help;
  }
}

TEST(PatternCommand, RefusesWrongRequests) {
  EXPECT_EQ(message({}),
            "PATTERN is missing; usage: weft pattern PATTERN [flags], or weft pattern --num-layers N [flags]");
  EXPECT_EQ(message({"M", "--num-layers", "2"}), "both PATTERN and --num-layers are given; keep one");
  EXPECT_EQ(
      message({"[*E]", "--num-experts", "4", "--moe-layer-freq", "2"}),
      "the configuration has a problem:\n  - --moe-layer-freq 2: --pattern chooses the layers; drop one of the two");
  for (const char* second : {"*", "-E", ""})
    EXPECT_EQ(
        message({"M", second}),
        "unexpected argument '" + std::string(second) +
            "': one pattern is explained at a time; put it in single quotes, for a shell has its own meaning for * "
            "and |");
  EXPECT_EQ(message({"M", "--jsn"}), "unknown flag --jsn; did you mean --json?");
  EXPECT_EQ(message({"M", "--colour=red"}), "unknown flag --colour; weft pattern --help lists all flags");
  EXPECT_EQ(message({"M", "--pp"}), "--pp: a value is missing; write --pp N");
  EXPECT_EQ(message({"M", "--pp", "two"}), "--pp: 'two' is not a whole number");
  EXPECT_EQ(message({"M", "--pp", "0"}), "--pp: 0 is out of range; it must be at least 1");
  EXPECT_EQ(message({"M", "--pp", "4294967297"}), "--pp: 4294967297 is out of range; it must be at most 1073741824");
  EXPECT_EQ(message({"M", "--first-stage-layers", "-1"}),
            "--first-stage-layers: -1 is out of range; it must be at least 0");
  EXPECT_EQ(message({"M", "--pp=1", "--pp=2"}), "--pp is given twice with different values: 1 and 2; keep one");
  EXPECT_EQ(message({"M", "--json=yes"}), "--json takes no value, but 'yes' is given");
  EXPECT_EQ(message({"M[*", "--json"}),
            "bad pattern: '[' without ']': put ']' after the group's last symbol\n  M[*\n   ^");
}

TEST(PatternCommand, TellsNoLayersFromNone) {
  const auto json = nlohmann::json::parse(output({"M*", "--pp", "2", "--first-stage-layers", "0", "--json"}));
  EXPECT_EQ(json["segments"][0]["text"], "");
  EXPECT_EQ(json["segments"][1]["text"], "M*");
  EXPECT_EQ(nlohmann::json::parse(output({"", "--json"}))["physical_layers"], 0) << "an empty pattern is legal";
}

}  // namespace
}  // namespace weft
