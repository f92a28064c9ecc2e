// The transformer's form of a model: --num-layers and the flags that choose the kinds of layers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/train/parsed_options.h"
#include "weft/device/cpu/device.h"
#include "weft/train/digest.h"
#include "weft/train/layer_choice.h"
#include "weft/train/trainer.h"

namespace weft {
namespace {

using List = std::vector<std::uint8_t>;

std::string pattern_of(const std::string& words) { return ParsedOptions(words).options.model.pattern; }

TEST(LayerChoice, IsANumberOrAListThatPythonReads) {
  EXPECT_EQ(parse_layer_choice("2").number, 2);
  EXPECT_EQ(parse_layer_choice(" 02 ").text, "2");
  EXPECT_EQ(parse_layer_choice("[0,1,1]").list, (List{0, 1, 1}));
  EXPECT_EQ(parse_layer_choice("[0, 1, ]").list, (List{0, 1}));
  EXPECT_EQ(parse_layer_choice("([0]*3+[1]*2)").list, (List{0, 0, 0, 1, 1}));
  EXPECT_EQ(parse_layer_choice("2*[0,1]+[1]").list, (List{0, 1, 0, 1, 1}));
  EXPECT_EQ(parse_layer_choice("([1]*2 + [0])*(1+1)").list, (List{1, 1, 0, 1, 1, 0}));
  EXPECT_EQ(parse_layer_choice("[1]*0+[0]").list, (List{0}));
  EXPECT_EQ(parse_layer_choice("[0]*3+[1]*58").list.size(), 61u);
}

TEST(LayerChoice, MessagesPointAtTheMistake) {
  const auto message = [](const std::string& text) {
    try {
      parse_layer_choice(text);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message("[0]*3+[1"), "a , or ] should be here\n  [0]*3+[1\n          ^");
  EXPECT_EQ(message("([0]"), "a ) should be here\n  ([0]\n      ^");
  EXPECT_EQ(message("[0]*"), "a number or a list should be here\n  [0]*\n      ^");
  EXPECT_EQ(message("[0]1"), "+ or * should be here\n  [0]1\n     ^");
  EXPECT_EQ(message("x"), "a number or a list should be here\n  x\n  ^");
  EXPECT_EQ(message("-1"), "a number or a list should be here\n  -1\n  ^");
  EXPECT_EQ(message("[0]+1"), "a list and a number cannot be added\n  [0]+1\n       ^");
  EXPECT_EQ(message("[0]*[1]"), "two lists cannot be multiplied\n  [0]*[1]\n         ^");
  EXPECT_EQ(message("[[0]]"), "a list holds numbers only\n  [[0]]\n      ^");
  EXPECT_EQ(message("[0,2]"), "the list has a 2; each layer has a 0 or a 1");
  EXPECT_EQ(message("[]"), "the list is empty");
  EXPECT_EQ(message("0"), "0 is out of range; it must be at least 1");
  EXPECT_THAT(message("[0]*100000*100000"), testing::HasSubstr("no model has more than 100000 layers"));
  EXPECT_THAT(message("99999999999999999999"), testing::HasSubstr("no model has more than 100000 layers"));
  EXPECT_THAT(message(std::string(100'000, '(')), testing::HasSubstr("parentheses are nested too deeply"));
}

TEST(OptionsLayers, MakeThePattern) {
  EXPECT_EQ(pattern_of("--num-layers 2"), "[*-][*-]");
  EXPECT_EQ(pattern_of("--num-layers 2 --num-experts 4"), "[*E][*E]");
  EXPECT_EQ(pattern_of("--num-layers 5 --num-experts 4 --moe-layer-freq 2"), "[*E][*-][*E][*-][*E]");
  EXPECT_EQ(pattern_of("--num-layers 3 --num-experts 4 --moe-layer-freq [0]+[1]*2"), "[*-][*E][*E]");
  EXPECT_EQ(pattern_of("--num-layers 2 --multi-latent-attention"), "[+-][+-]");
  EXPECT_EQ(pattern_of("--num-layers 2 --multi-latent-attention --experimental-attention-variant dsa --q-lora-rank 8"),
            "[D-][D-]");
  const std::string delta = "--experimental-attention-variant gated_delta_net --linear-attention-freq ";
  EXPECT_EQ(pattern_of("--num-layers 5 " + delta + "4"), "[G-][G-][G-][*-][G-]");
  EXPECT_EQ(pattern_of("--num-layers 2 --num-experts 4 --multi-latent-attention " + delta + "[1,0]"), "[GE][+E]");
}

TEST(OptionsLayers, ADepthOfPredictionIsLikeTheLastLayer) {
  EXPECT_EQ(pattern_of("--num-layers 1 --mtp-num-layers 2"), "[*-]/[*-]/[*-]");
  EXPECT_EQ(pattern_of("--num-layers 2 --num-experts 4 --moe-layer-freq [0,1] --mtp-num-layers 1"), "[*-][*E]/[*E]");
  EXPECT_EQ(pattern_of("--num-layers 2 --num-experts 4 --moe-layer-freq 2 --mtp-num-layers 1"), "[*E][*-]/[*-]");
}

TEST(OptionsLayers, MayStandBesideThePatternThatTheyWouldMake) {
  EXPECT_EQ(pattern_of("--num-layers 2 --pattern [*-][*-]"), "[*-][*-]");
  EXPECT_EQ(pattern_of("--num-layers 4 --pattern *-*-"), "*-*-");
  EXPECT_EQ(pattern_of("--pattern [+-] --multi-latent-attention"), "[+-]");
  EXPECT_EQ(pattern_of("--pattern MG*-/M/M --mtp-num-layers 2 --experimental-attention-variant gated_delta_net"),
            "MG*-/M/M");
  EXPECT_EQ(pattern_of("--pattern [*E] --moe-layer-freq 1"), "[*E]");
  EXPECT_EQ(pattern_of("--pattern [*E][*-] --num-layers 2 --num-experts 4 --moe-layer-freq 2"), "[*E][*-]");
  EXPECT_EQ(problem_of("--num-layers 3 --pattern *-*-"),
            "--num-layers 3: the pattern '*-*-' has 4 symbols in 4 layers; drop --num-layers");
  EXPECT_EQ(problem_of("--pattern [*-] --multi-latent-attention"),
            "--multi-latent-attention: the pattern '[*-]' has no + or D; write it into --pattern, or drop the flag");
  EXPECT_EQ(problem_of("--pattern [+-] --experimental-attention-variant dsa"),
            "--experimental-attention-variant dsa: the pattern '[+-]' has no D; write it into --pattern, or drop the "
            "flag");
  EXPECT_EQ(problem_of("--pattern [*E][*-] --moe-layer-freq 2"),
            "--moe-layer-freq 2: --pattern chooses the layers; drop one of the two");
  EXPECT_EQ(problem_of("--pattern [G-] --linear-attention-freq 4"),
            "--linear-attention-freq 4: --pattern chooses the layers; drop one of the two");
  EXPECT_EQ(problem_of("--pattern [*-]/ --mtp-num-layers 1"),
            "--mtp-num-layers 1: the pattern '[*-]/' has 0 depths; write a part after / for each depth, or drop the "
            "flag");
}

TEST(OptionsLayers, ThatDoNotFit) {
  EXPECT_EQ(problem_of("--num-layers 2 --num-experts 4 --moe-layer-freq [0,1,1]"),
            "--moe-layer-freq [0,1,1]: the list has 3 entries for 2 layers (--num-layers); give one per layer");
  EXPECT_EQ(problem_of("--num-layers 2 --moe-layer-freq 2"),
            "--moe-layer-freq 2: there are no experts; set --num-experts");
  EXPECT_EQ(problem_of("--num-layers 2 --num-experts 4 --moe-layer-freq [0]*2"),
            "--num-experts 4: the pattern '[*-][*-]' has no E; drop the flag");
  EXPECT_EQ(problem_of("--num-layers 2 --linear-attention-freq 2"),
            "--linear-attention-freq 2: needs --experimental-attention-variant gated_delta_net");
  EXPECT_EQ(problem_of("--num-layers 2 --experimental-attention-variant gated_delta_net"),
            "--experimental-attention-variant gated_delta_net: needs --linear-attention-freq, 4 for one layer of full "
            "attention in four");
  EXPECT_EQ(problem_of("--num-layers 2 --experimental-attention-variant dsa --q-lora-rank 8"),
            "--experimental-attention-variant dsa: sparse attention is a form of multi-latent attention; add "
            "--multi-latent-attention");
  EXPECT_EQ(problem_of("--num-layers 2 --multi-latent-attention --experimental-attention-variant gated_delta_net "
                       "--linear-attention-freq [1,1]"),
            "--multi-latent-attention: --linear-attention-freq leaves no layer with full attention; drop one of the "
            "two");
  EXPECT_EQ(error_of("--moe-layer-freq [0,2]"), "--moe-layer-freq [0,2]: the list has a 2; each layer has a 0 or a 1");
  for (const std::string flag : {"--multi-latent-attention", "--mtp-num-layers 1", "--moe-layer-freq 2"})
    EXPECT_EQ(problem_of(flag),
              flag + ": set the number of layers with --num-layers, or choose all layers with --pattern");
}

TEST(OptionsLayers, TheModelIsThatOfTheWrittenPattern) {
  const auto digest_of = [](const std::string& words) {
    const ParsedOptions run(words +
                            " --num-experts 4 --hidden-size 32 --kv-lora-rank 8 --qk-head-dim 8 --qk-pos-emb-head-dim "
                            "8 --v-head-dim 8 --seq-length 8 --micro-batch-size 1");
    CpuDevice device;
    Session session(device, session_options(run.options, run_config(run.options), nullptr));
    session.initialise_parameters(5);
    return weight_digest(session);
  };
  const std::string made =
      digest_of("--num-layers 3 --multi-latent-attention --moe-layer-freq [0]+[1]*2 --mtp-num-layers 1");
  EXPECT_EQ(made, digest_of("--pattern [+-][+E][+E]/[+E]"));
  EXPECT_NE(made, digest_of("--pattern [+E][+-][+E]/[+E]"));
}

}  // namespace
}  // namespace weft
