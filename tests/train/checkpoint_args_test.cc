// --use-checkpoint-args: the model comes from the checkpoint, and flags only add.
#include "weft/train/checkpoint_args.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/data/temporary_folder.h"
#include "tests/train/parsed_options.h"
#include "weft/base/error.h"
#include "weft/checkpoint/checkpoint_in_progress.h"
#include "weft/checkpoint/megatron/megatron_args.h"
#include "weft/checkpoint/model_description.h"
#include "weft/checkpoint/run_checkpoint.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string golden(const std::string& name) {
  return (std::filesystem::path(WEFT_SOURCE_DIR) / "tests/golden/torch_dist" / name).string();
}

TEST(CheckpointArgs, a_model_of_megatrons_is_that_of_its_args) {
  for (const char* name : {"hybrid", "gpt", "flat_bf16"}) {
    SCOPED_TRACE(name);
    const ParsedOptions parsed("--load " + golden(name) + " --use-checkpoint-args --seq-length 64 --mock-data");
    const ModelConfig config = model_config(parsed.options);
    EXPECT_EQ(config.pattern, std::string(name) == "flat_bf16" ? "*E*E" : "[*E][*E]");
    EXPECT_EQ(config.hidden, 32);
    EXPECT_EQ(config.vocabulary, std::string(name) == "gpt" ? 97 : 96);
    EXPECT_EQ(config.attention.heads, 4);
    EXPECT_EQ(config.attention.kv_heads, 2);
    EXPECT_EQ(config.attention.head_dim, 16);
    EXPECT_TRUE(config.attention.qk_norm);
    EXPECT_FALSE(config.attention.qkv_bias);
    EXPECT_EQ(config.attention.rope.base, 10000);
    EXPECT_EQ(config.norm_epsilon, 1e-6);
    EXPECT_FALSE(config.tied_embeddings);
    EXPECT_EQ(config.experts.experts, 8);
    EXPECT_EQ(config.experts.ffn, 24);
    EXPECT_EQ(config.experts.router.k, 2);
    EXPECT_TRUE(config.experts.router.choose_first);
    EXPECT_EQ(config.experts.activation.kind, ActivationKind::swiglu);
    EXPECT_EQ(config.experts.balance.aux_loss, 0);
    EXPECT_EQ(config.max_positions, 128);
    ASSERT_EQ(parsed.flags.notes().size(), 1u);
    EXPECT_THAT(parsed.flags.notes()[0], HasSubstr("--use-checkpoint-args: " + golden(name) + "/iter_0000007 gives "));
    EXPECT_THAT(parsed.flags.notes()[0], HasSubstr("--num-experts 8"));
    EXPECT_EQ(parsed.flags.flag("--hidden-size").origin.text(), golden(name) + "/iter_0000007 (hidden_size)");
  }
}

TEST(CheckpointArgs, a_flag_may_repeat_what_the_checkpoint_says_but_not_contradict_it) {
  const std::string load = "--load " + golden("hybrid") + " --use-checkpoint-args --seq-length 64 --mock-data";
  const ParsedOptions parsed(load + " --hidden-size 32 --lr 0.5");
  EXPECT_EQ(parsed.options.model.hidden_size, 32);
  EXPECT_EQ(parsed.options.optimizer.lr, 0.5);
  EXPECT_EQ(problem_of(load + " --hidden-size 64"),
            "--hidden-size 64: " + golden("hybrid") +
                "/iter_0000007 (hidden_size) has 32; drop the flag, or --use-checkpoint-args");
}

TEST(CheckpointArgs, need_a_checkpoint) {
  EXPECT_THAT(problem_of("--use-checkpoint-args"), HasSubstr("set --load DIR"));
  const TemporaryFolder folder;
  const ParsedOptions parsed("--load " + folder.file("none") + " --use-checkpoint-args");
  EXPECT_THAT(parsed.flags.notes(), ElementsAre("--use-checkpoint-args: there is no checkpoint in " +
                                                folder.file("none") + "; the flags make the model"));
}

void save_run(const std::string& dir, const Json& arguments) {
  const CheckpointInProgress checkpoint(dir, 1);
  checkpoint.begin();
  const Json run = {{"iteration", 1}, {"consumed_train_samples", 4}, {"optimizer_steps", 1}, {"arguments", arguments}};
  checkpoint.commit({}, run.dump());
}

TEST(CheckpointArgs, a_model_of_weft_is_that_of_its_flags) {
  const TemporaryFolder folder;
  const std::string run = folder.file("run");
  ParsedOptions saved(
      "--pattern [*E] --hidden-size 32 --num-experts 4 --disable-bias-linear --seq-length 32 "
      "--moe-router-load-balancing-type aux_loss seq_aux_loss --moe-aux-loss-coeff 0.1 0.2 --lr 0.7");
  save_run(run, Json::parse(flags_of_run(saved.options)));
  const ParsedOptions parsed("--load " + run + " --use-checkpoint-args");
  EXPECT_EQ(to_json(model_config(parsed.options)), to_json(model_config(saved.options)));
  EXPECT_EQ(parsed.options.optimizer.lr, TrainOptions().optimizer.lr);  // not of the model
  const std::string words = "--load " + run + " --use-checkpoint-args ", at = run + "/iter_0000001 ";
  EXPECT_EQ(problem_of(words + "--num-experts 8"),
            "--num-experts 8: " + at + "(num-experts) has 4; drop the flag, or --use-checkpoint-args");
  EXPECT_EQ(problem_of(words + "--qk-layernorm"),
            "--qk-layernorm true: " + at + "(qk-layernorm) has false; drop the flag, or --use-checkpoint-args");
}

TEST(CheckpointArgs, a_model_of_hugging_faces_is_described_by_the_manifest) {
  const TemporaryFolder folder;
  const std::string run = folder.file("run"), at = run + "/iter_0000001";
  save_run(run, {{"hf", "/somewhere/else"}, {"moe-z-loss-coeff", "0.1"}, {"hidden-size", "128"}});
  std::map<std::string, std::string> flags;
  for (const CheckpointArg& arg : model_flags_of_weft(arguments_of(*find_checkpoint(run)), at))
    flags[arg.flag] = arg.value.words[0];
  EXPECT_EQ(flags, (std::map<std::string, std::string>{{"--hf", at}, {"--moe-z-loss-coeff", "0.1"}}));
}

// name -> flag and value
std::map<std::string, std::string> flags_in(const Json& args) {
  std::map<std::string, std::string> flags;
  for (const CheckpointArg& arg : model_flags_of_megatron(args)) {
    std::string text;
    for (const std::string& word : arg.value.words) text += (text.empty() ? "" : " ") + word;
    flags[arg.flag] = text;
  }
  return flags;
}

TEST(CheckpointArgs, layers_of_a_transformer_are_flags_that_make_the_pattern) {
  const auto flags = flags_in(Json::parse(R"({"num_layers": 4, "num_experts": 8, "moe_layer_freq": [0, 1, 1, 1],
      "multi_latent_attention": true, "mtp_num_layers": 2, "q_lora_rank": 1536, "kv_channels": 128,
      "rope_type": "yarn", "rotary_scaling_factor": 40.0, "qk_layernorm": true, "swiglu": true,
      "moe_router_load_balancing_type": ["seq_aux_loss", "aux_loss"], "moe_aux_loss_coeff": [0.001, 0.01],
      "vocab_size": null, "padded_vocab_size": 129280})"));
  EXPECT_EQ(flags.at("--num-layers"), "4");
  EXPECT_EQ(flags.at("--moe-layer-freq"), "[0,1,1,1]");
  EXPECT_EQ(flags.at("--multi-latent-attention"), "true");
  EXPECT_EQ(flags.at("--mtp-num-layers"), "2");
  EXPECT_EQ(flags.at("--q-lora-rank"), "1536");
  EXPECT_EQ(flags.at("--rotary-scaling-factor"), "40");
  EXPECT_EQ(flags.at("--moe-router-load-balancing-type"), "seq_aux_loss aux_loss");
  EXPECT_EQ(flags.at("--moe-aux-loss-coeff"), "0.001 0.01");
  EXPECT_EQ(flags.at("--vocab-size"), "129279");
  EXPECT_FALSE(flags.contains("--kv-channels"));   // it does not apply to latent attention
  EXPECT_FALSE(flags.contains("--qk-layernorm"));  // there always
}

// As `weft convert --to megatron --megatron-transformer` writes them.
TEST(CheckpointArgs, those_that_weft_writes_of_a_transformer_make_the_same_model) {
  const std::string shape = "--hidden-size 32 --ffn-hidden-size 24 --num-layers 4 --num-experts 4 ";
  for (const std::string layers :
       {"", "--moe-layer-freq [0,1,1,1] --mtp-num-layers 2", "--moe-layer-freq 2",
        "--multi-latent-attention --moe-layer-freq ([0]*1+[1]*3) --mtp-num-layers 1 --q-lora-rank 8 --kv-lora-rank 8",
        "--experimental-attention-variant gated_delta_net --linear-attention-freq 2",
        "--experimental-attention-variant gated_delta_net --linear-attention-freq [1,1,0,1] --moe-layer-freq "
        "[1,0,1,1]"}) {
    SCOPED_TRACE(layers);
    const ParsedOptions saved(shape + layers);
    const ModelConfig config = model_config(saved.options);
    TrainOptions options;
    FlagTable flags("");
    add_train_flags(flags, options);
    for (const CheckpointArg& arg : model_flags_of_megatron(megatron_model_args(config, true))) {
      const FlagAssignment assignment{arg.flag, arg.value, {}};
      flags.apply({&assignment, 1});
    }
    resolve(options);
    EXPECT_EQ(options.model.num_layers, 4);
    EXPECT_EQ(model_config(options).pattern, config.pattern);
    EXPECT_EQ(to_json(model_config(options)), to_json(config));
  }
}

// A new flag of the model needs a line in the table, or a reason here.
TEST(CheckpointArgs, every_flag_of_the_model_has_an_arg) {
  TrainOptions options;
  FlagTable flags("");
  add_train_flags(flags, options);
  Json args = {{"rope_type", "yarn"},
               {"group_query_attention", true},
               {"window_size", {127, 0}},
               {"swiglu", true},
               {"untie_embeddings_and_output_weights", true},
               {"position_embedding_type", "yarn"}};
  std::set<std::string> of_model;
  for (const Flag& flag : flags.flags()) {
    if (flag.kind == FlagKind::foreign) continue;
    for (const char* section :
         {"Model", "Attention", "Multi-latent attention", "Experts", "Recurrent layers", "Balance of experts"})
      if (flag.section == section) of_model.insert(flag.name);
    std::string name = flag.key();
    std::replace(name.begin(), name.end(), '-', '_');
    if (!args.contains(name)) args[name] = flag.kind == FlagKind::toggle ? Json(true) : Json("1");
  }
  for (const char* pattern : {"M*G-E", "+D-E"}) {
    args["hybrid_layer_pattern"] = pattern;
    for (const auto& [flag, value] : flags_in(args)) of_model.erase(flag);
  }
  args.erase("hybrid_layer_pattern");
  for (const char* name : {"num_experts", "num_layers", "mtp_num_layers"}) args[name] = 2;
  for (const auto& [flag, value] : flags_in(args)) of_model.erase(flag);
  EXPECT_THAT(of_model,
              testing::IsSubsetOf({"--hf",                                  // not Megatron's
                                   "--hf-family",                           // not Megatron's
                                   "--group-query-attention",               // by --num-query-groups
                                   "--mamba-chunk-size",                    // rounding alone
                                   "--moe-router-norm-topk",                // follows from the score function there
                                   "--moe-router-force-load-balancing"}));  // for measurements
}

TEST(CheckpointArgs, what_weft_does_not_have_is_refused_by_its_name) {
  const auto refusal = [](const char* args) {
    Json json = Json::parse(args);
    json["num_layers"] = 2;
    return message_of<UserError>([&] { model_flags_of_megatron(json); });
  };
  EXPECT_EQ(refusal(R"({"normalization": "LayerNorm"})"),
            "normalization is LayerNorm: Weft has only RMSNorm; a model made of flags cannot have it");
  EXPECT_THAT(refusal(R"({"attention_dropout": 0.1})"), HasSubstr("attention_dropout is 0.1: Weft has no dropout"));
  EXPECT_THAT(refusal(R"({"moe_mlp_glu_interleave_size": 32})"), HasSubstr("moe_mlp_glu_interleave_size is 32"));
  EXPECT_THAT(refusal(R"({"multi_latent_attention": true, "qk_layernorm": false})"),
              HasSubstr("qk_layernorm is false"));
  EXPECT_THAT(refusal(R"({"is_hybrid_model": true, "hybrid_layer_pattern": null})"),
              HasSubstr("hybrid_layer_pattern is None"));
  EXPECT_EQ(refusal(R"({"attention_dropout": 0.0, "hidden_dropout": 0, "fp32_residual_connection": false})"), "");
}

}  // namespace
}  // namespace weft
