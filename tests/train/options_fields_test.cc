// Messages that name fields reach the user of the command line with flags in their place.
#include "weft/train/options_fields.h"

#include <functional>
#include <set>

#include <gtest/gtest.h>

#include "tests/train/parsed_options.h"
#include "weft/model/build_module.h"

namespace weft {
namespace {

TEST(OptionsFields, KnownFieldsInBackquotesBecomeFlags) {
  EXPECT_EQ(with_flags("`hidden` 0: must be at least 1"), "--hidden-size 0: must be at least 1");
  EXPECT_EQ(with_flags("rank 1: `experts.router.k` 9: must not exceed `experts.experts` 8"),
            "rank 1: --moe-router-topk 9: must not exceed --num-experts 8");
  for (const char* same : {"", "hidden", "`weft plan` lists them", "a ` alone", "`hidden", "``", "`Hidden`"})
    EXPECT_EQ(with_flags(same), same);
  EXPECT_EQ(with_flags("an odd ` before `hidden`"), "an odd ` before --hidden-size");
  EXPECT_EQ(with_flags("`weft plan` and `device` cpu"), "`weft plan` and --device cpu");
}

TEST(OptionsFields, EveryFlagExistsAndEveryFieldIsThereOnce) {
  const ParsedOptions run("");
  std::set<std::string_view> fields;
  for (const FieldFlag& f : field_flags()) {
    EXPECT_EQ(run.flags.flag(f.flag).name, f.flag);
    EXPECT_TRUE(fields.insert(f.field).second) << f.field;
  }
}

// The message that the command line prints for a model that was broken after its options were checked.
std::string refusal(const std::string& pattern, const std::function<void(ModelConfig&)>& spoil) {
  ModelConfig config =
      model_config(ParsedOptions("--pattern " + pattern + (pattern == "D" ? " --q-lora-rank 8" : "")).options);
  spoil(config);
  try {
    check_config(config);
  } catch (const UserError& error) {
    return with_flags(error.what());
  }
  return "no error";
}

TEST(OptionsFields, ModelsThatCannotBeNameFlags) {
  const auto expect = [](const std::string& pattern, const std::function<void(ModelConfig&)>& spoil,
                         const std::string& message) { EXPECT_EQ(refusal(pattern, spoil), message); };
  expect(
      "*", [](ModelConfig&) {}, "no error");
  expect(
      "*", [](ModelConfig& c) { c.hidden = 0; }, "--hidden-size 0: must be at least 1");
  expect(
      "*", [](ModelConfig& c) { c.vocabulary = 0; }, "--vocab-size 0: must be at least 1");
  expect(
      "*", [](ModelConfig& c) { c.padded_vocabulary = 7; },
      "--make-vocab-size-divisible-by 7: must be at least the vocabulary of 257");
  expect(
      "*", [](ModelConfig& c) { c.mtp_loss_factor = 0; }, "--mtp-loss-scaling-factor 0: must be above 0");
  expect(
      "*", [](ModelConfig& c) { c.attention.kv_heads = 3; },
      "--num-query-groups 3: must divide --num-attention-heads 4");
  expect(
      "*", [](ModelConfig& c) { c.attention.rope.fraction = 0.1; },
      "--rotary-percent 0.1: 3.2 of the 32 elements of a head would rotate, which must be an even number");
  expect(
      "*", [](ModelConfig& c) { c.attention.output_gate = c.attention.qkv_bias = true; },
      "--attention-output-gate: gated attention has no biases of q, k and v; drop it or --add-qkv-bias");
  expect(
      "+", [](ModelConfig& c) { c.latent_attention.rotary_dim = 3; },
      "--qk-pos-emb-head-dim 3: elements rotate in pairs; use an even number");
  expect(
      "+", [](ModelConfig& c) { c.latent_attention.rope.enabled = false; },
      "--position-embedding-type: multi-latent attention needs rotary positions");
  expect(
      "D", [](ModelConfig& c) { c.latent_attention.indexer.dim = 8; },
      "--dsa-indexer-head-dim 8: must be at least --qk-pos-emb-head-dim 64");
  expect(
      "M", [](ModelConfig& c) { c.mamba.groups = 3; }, "--mamba-num-groups 3: must divide --mamba-num-heads 4");
  expect(
      "M", [](ModelConfig& c) { c.mamba.taps = 17; }, "--mamba-conv-kernel-dim 17: must be 1 to 16");
  expect(
      "G", [](ModelConfig& c) { c.delta_net.key_heads = 3; },
      "--linear-num-key-heads 3: must divide --linear-num-value-heads 2");
  expect(
      "-", [](ModelConfig& c) { c.mlp.ffn = 0; }, "--ffn-hidden-size 0: must be at least 1");
  expect(
      "E", [](ModelConfig& c) { c.experts.router.k = 9; }, "--moe-router-topk 9: must be 1 to --num-experts 8");
  expect(
      "E", [](ModelConfig& c) { c.experts.router.groups = 3; },
      "--moe-router-num-groups 3: must divide --num-experts 8");
  expect(
      "E", [](ModelConfig& c) { c.experts.expert_bias = true; },
      "--moe-router-enable-expert-bias: only sigmoid scores are corrected by a bias; set "
      "--moe-router-score-function sigmoid");
}

TEST(OptionsFields, ExpertsThatDoNotDivideNameTheFlag) {
  const ModelConfig config = model_config(ParsedOptions("--pattern [*E]").options);
  ModuleOptions options;
  options.layout = Layout::of_data_and_experts(6, 6);
  try {
    build_module(config, options);
    FAIL() << "6 ranks share 8 experts";
  } catch (const UserError& error) {
    EXPECT_EQ(with_flags(error.what()), "--expert-model-parallel-size 6: must divide the 8 experts of a layer; use 2");
  }
}

}  // namespace
}  // namespace weft
