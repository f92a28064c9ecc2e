// How layers are placed on the stages of a pipeline, and what cannot be.
#include <gtest/gtest.h>

#include "tests/train/parsed_options.h"
#include "weft/base/error.h"
#include "weft/train/stage_layout.h"

namespace weft {
namespace {

std::vector<std::string> segments(const std::string& words) {
  const ParsedOptions run(words);
  const std::string& pattern = run.options.model.pattern;
  std::vector<std::string> texts;
  for (const Segment& segment : parse_pattern(pattern, split_options(run.options, pattern)).segments)
    texts.push_back(segment.text);
  return texts;
}
using Texts = std::vector<std::string>;

TEST(OptionsPipeline, LayersOfAPatternAreSymbols) {
  const std::string run = "--ranks 2 --pipeline-model-parallel-size 2 --global-batch-size 16 ";
  EXPECT_EQ(segments(run + "--pattern M*M*-*-*"), (Texts{"M*M*", "-*-*"}));
  EXPECT_EQ(segments(run + "--pattern M*|M*-*-*"), (Texts{"M*", "M*-*-*"}));
  EXPECT_EQ(segments(run + "--pattern M*M*-*-* --num-virtual-stages-per-pipeline-rank 2"),
            (Texts{"M*", "M*", "-*", "-*"}));
  EXPECT_EQ(segments(run + "--pattern M*M*-*-* --num-layers-per-virtual-pipeline-stage 1").size(), 8u);
  EXPECT_EQ(segments(run + "--pattern M*M*-*-* --decoder-first-pipeline-num-layers 2"), (Texts{"M*", "M*-*-*"}));
  EXPECT_EQ(segments(run + "--pattern [*-]M[*-]M"), (Texts{"[*-]M", "[*-]M"}));
  EXPECT_NE(problem_of(run + "--pattern M*[-*-]-").find("segment 0 would end within this group: use '|'"),
            std::string::npos)
      << problem_of(run + "--pattern M*[-*-]-");
}

TEST(OptionsPipeline, LayersOfATransformerAreLayers) {
  const std::string run = "--ranks 2 --pipeline-model-parallel-size 2 --global-batch-size 16 --num-layers 4 ";
  EXPECT_EQ(segments(run), (Texts{"[*-][*-]", "[*-][*-]"}));
  EXPECT_EQ(segments(run + "--num-layers-per-virtual-pipeline-stage 1"), (Texts{"[*-]", "[*-]", "[*-]", "[*-]"}));
  EXPECT_EQ(segments(run + "--pipeline-model-parallel-layout Et|t|tt|L"), (Texts{"[*-]", "[*-]", "[*-][*-]", ""}));
  EXPECT_EQ(segments(run + "--pipeline-model-parallel-layout E|t*3,|t|L"), (Texts{"", "[*-][*-][*-]", "[*-]", ""}));
}

TEST(OptionsPipeline, WhatCannotBe) {
  const std::string run = "--ranks 4 --pipeline-model-parallel-size 4 --micro-batch-size 1 --global-batch-size ";
  EXPECT_EQ(problem_of("--ranks 4 --pipeline-model-parallel-size 3"),
            "--pipeline-model-parallel-size 3: must divide the 4 ranks");
  EXPECT_EQ(problem_of("--ranks 4 --pipeline-model-parallel-size 2 --expert-model-parallel-size 4 --pattern EE"),
            "--expert-model-parallel-size 4: must divide the 2 ranks of a stage");
  EXPECT_NE(problem_of(run + "16 --pattern *|*").find("2 segments cannot be spread over 4 pipeline ranks"),
            std::string::npos);
  EXPECT_NE(problem_of(run + "16 --pattern *|*|*|* --num-virtual-stages-per-pipeline-rank 2")
                .find("'|' already places the layers: drop it, or the number of virtual stages"),
            std::string::npos);
  EXPECT_EQ(problem_of(run + "6 --pattern ******** --num-virtual-stages-per-pipeline-rank 2"), "no error");
  EXPECT_EQ(problem_of(run + "16 --pattern ******** --num-virtual-stages-per-pipeline-rank 2 "
                             "--microbatch-group-size-per-virtual-pipeline-stage 3"),
            "--pipeline-model-parallel-size 4: interleaved stages need at least as many micro-batches in a group as "
            "there are stages: 3 for 4 stages");
  EXPECT_EQ(
      problem_of(run + "16 --pattern ******** --num-virtual-stages-per-pipeline-rank 2 --pipeline-order zero-bubble"),
      "--pipeline-model-parallel-size 4: the order zero-bubble takes one segment per stage, and there are 2; use "
      "interleaved");
  EXPECT_EQ(problem_of(run + "16 --pattern **** --microbatch-group-size-per-virtual-pipeline-stage 4"),
            "--microbatch-group-size-per-virtual-pipeline-stage 4: every stage has one segment, and no order groups "
            "micro-batches; drop the flag");
  EXPECT_EQ(problem_of(run + "16 --pattern ******** --num-virtual-stages-per-pipeline-rank 2 "
                             "--num-layers-per-virtual-pipeline-stage 1"),
            "--num-virtual-stages-per-pipeline-rank, --num-layers-per-virtual-pipeline-stage: place the layers in "
            "different ways; keep one");
  EXPECT_EQ(problem_of("--num-virtual-stages-per-pipeline-rank 2"),
            "--num-virtual-stages-per-pipeline-rank 2: one stage has nothing to interleave with; set "
            "--pipeline-model-parallel-size");
}

std::string layout_error(const char* text, bool mtp) {
  try {
    layers_of_stages(text, mtp);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(OptionsPipeline, LayoutsAreText) {
  EXPECT_EQ(layers_of_stages("Et*3|(tt|)*2,mL", true), (std::vector<int>{3, 2, 2, 0}));
  EXPECT_EQ(layers_of_stages("E|L", false), (std::vector<int>{0, 0}));
  EXPECT_EQ(layout_error("Et|tm|L", true),
            "MTP and the loss share a weight: put m on the stage of L\n  Et|tm|L\n      ^");
  EXPECT_EQ(layout_error("t|L", false), "E, the embedding, must be first\n  t|L\n  ^");
  EXPECT_EQ(layout_error("Et|x", false), "only E, t, m, L, '|', parentheses and *N stand here\n  Et|x\n     ^");
  EXPECT_EQ(layout_error("Et|t", false), "L, the loss, is missing at the end\n  Et|t\n      ^");
  EXPECT_EQ(layout_error("E(t|L", false), "this '(' is not closed\n  E(t|L\n   ^");
  EXPECT_EQ(layout_error("EtL|t", false), "the stage with L, the loss, must be the last\n  EtL|t\n     ^");
}

}  // namespace
}  // namespace weft
