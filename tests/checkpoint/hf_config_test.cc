// What config.json asks for, and what is refused.
#include <cmath>

#include <gtest/gtest.h>

#include "tests/checkpoint/model_folder.h"
#include "weft/base/error.h"
#include "weft/checkpoint/hugging_face.h"

namespace weft {
namespace {

ModelConfig patched(const std::string& golden, const Json& patch) {
  const ModelFolder folder(golden);
  folder.patch_config(patch);
  return read_hugging_face_config(folder.path()).config;
}

// What a changed config is refused for, after the file's name; "" when it is not.
std::string complaint(const std::string& golden, const Json& patch) {
  const ModelFolder folder(golden);
  folder.patch_config(patch);
  const std::string message = message_of<UserError>([&] { read_hugging_face_config(folder.path()); });
  if (message.empty()) return "";
  const std::string file = folder.file("config.json").string();
  EXPECT_EQ(message.find(file + ": "), 0u) << message;
  return message.substr(file.size() + 2);
}

TEST(HuggingFaceConfig, Llama) {
  const ModelConfig config = read_hugging_face_config(golden_folder("llama")).config;
  EXPECT_EQ(config.pattern, "[*-][*-]");
  EXPECT_EQ(config.hidden, 32);
  EXPECT_EQ(config.vocabulary, 96);
  EXPECT_EQ(config.embedding_rows(), 96);
  EXPECT_EQ(config.norm_epsilon, 1e-5);
  EXPECT_EQ(config.max_positions, 128);
  EXPECT_EQ(config.init_std, 0.02);
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_FALSE(config.zero_centred_norms);
  EXPECT_EQ(config.attention.heads, 4);
  EXPECT_EQ(config.attention.kv_heads, 2);
  EXPECT_EQ(config.attention.head_dim, 8);
  EXPECT_EQ(config.attention.scale, 0);
  EXPECT_EQ(config.attention.window, 0);
  EXPECT_FALSE(config.attention.qkv_bias);
  EXPECT_FALSE(config.attention.output_bias);
  EXPECT_FALSE(config.attention.qk_norm);
  EXPECT_TRUE(config.attention_at.empty());
  EXPECT_TRUE(config.attention.rope.enabled);
  EXPECT_EQ(config.attention.rope.base, 10000);
  EXPECT_EQ(config.attention.rope.fraction, 1);
  EXPECT_EQ(config.attention.rope.style, RotaryStyle::half_split);
  EXPECT_EQ(config.attention.rope.scaling, RopeSpec::Scaling::none);
  EXPECT_EQ(config.mlp.ffn, 64);
  EXPECT_EQ(config.mlp.activation.kind, ActivationKind::swiglu);
  EXPECT_FALSE(config.mlp.bias);
}

TEST(HuggingFaceConfig, LlamaWithTiesBiasesAndScaledRotary) {
  const ModelConfig config = read_hugging_face_config(golden_folder("llama_b")).config;
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_TRUE(config.attention.qkv_bias);
  EXPECT_TRUE(config.attention.output_bias);
  EXPECT_EQ(config.attention.kv_heads, 1);
  EXPECT_EQ(config.attention.head_dim, 12);
  const RopeSpec& rope = config.attention.rope;
  EXPECT_EQ(rope.scaling, RopeSpec::Scaling::llama3);
  EXPECT_EQ(rope.factor, 8);
  EXPECT_EQ(rope.low_frequency, 1);
  EXPECT_EQ(rope.high_frequency, 4);
  EXPECT_EQ(rope.original_positions, 32);
  EXPECT_TRUE(patched("llama", {{"mlp_bias", true}}).mlp.bias);
}

TEST(HuggingFaceConfig, Mixtral) {
  const ModelConfig config = read_hugging_face_config(golden_folder("mixtral")).config;
  EXPECT_EQ(config.pattern, "[*E][*E]");
  EXPECT_EQ(config.attention.head_dim, 8);  // null in the file
  EXPECT_EQ(config.attention.window, 0);
  EXPECT_EQ(config.experts.experts, 4);
  EXPECT_EQ(config.experts.ffn, 40);
  EXPECT_EQ(config.experts.shared_ffn, 0);
  EXPECT_EQ(config.experts.activation.kind, ActivationKind::swiglu);
  const RouterSpec& router = config.experts.router;
  EXPECT_EQ(router.score, RouterSpec::Score::softmax);
  EXPECT_FALSE(router.choose_first);
  EXPECT_TRUE(router.normalise);
  EXPECT_EQ(router.k, 2);
  EXPECT_EQ(router.scaling, 1);
  EXPECT_EQ(router.groups, 1);
  EXPECT_EQ(read_hugging_face_config(golden_folder("mixtral_b")).config.attention.window, 7);
  // Hugging Face's model has no biases, whatever attention_bias is.
  EXPECT_FALSE(patched("mixtral", {{"attention_bias", true}}).attention.qkv_bias);
  EXPECT_EQ(patched("mixtral", {{"num_local_experts", nullptr}, {"num_experts", 4}}).experts.experts, 4);
}

TEST(HuggingFaceConfig, Qwen3Moe) {
  const ModelConfig config = read_hugging_face_config(golden_folder("qwen3_moe")).config;
  EXPECT_EQ(config.pattern, "[*E][*E]");
  EXPECT_EQ(config.norm_epsilon, 1e-6);
  EXPECT_TRUE(config.attention.qk_norm);
  EXPECT_EQ(config.attention.head_dim, 16);
  EXPECT_EQ(config.experts.experts, 8);
  EXPECT_EQ(config.experts.ffn, 24);
  EXPECT_TRUE(config.experts.router.normalise);
  EXPECT_FALSE(config.experts.router.choose_first);
  const ModelConfig b = read_hugging_face_config(golden_folder("qwen3_moe_b")).config;
  EXPECT_EQ(b.pattern, "[*-][*E][*E]");
  EXPECT_EQ(b.mlp.ffn, 64);
  EXPECT_FALSE(b.experts.router.normalise);
  EXPECT_EQ(b.experts.router.k, 3);
}

TEST(HuggingFaceConfig, DenseLayersAmongSparseOnes) {
  const auto pattern = [](const Json& patch) {
    Json four = patch;
    four["num_hidden_layers"] = 4;
    return patched("qwen3_moe", four).pattern;
  };
  EXPECT_EQ(pattern({{"decoder_sparse_step", 2}}), "[*-][*E][*-][*E]");
  EXPECT_EQ(pattern({{"decoder_sparse_step", 3}}), "[*-][*-][*E][*-]");
  EXPECT_EQ(pattern({{"decoder_sparse_step", 5}}), "[*-][*-][*-][*-]");
  EXPECT_EQ(pattern({{"decoder_sparse_step", 2}, {"mlp_only_layers", {1, 2}}}), "[*-][*-][*-][*E]");
  EXPECT_EQ(pattern({{"mlp_only_layers", {0, 3, 9}}}), "[*-][*E][*E][*-]");
  EXPECT_EQ(pattern({{"mlp_only_layers", nullptr}, {"decoder_sparse_step", nullptr}}), "[*E][*E][*E][*E]");
  EXPECT_EQ(pattern({{"num_local_experts", 0}}), "[*-][*-][*-][*-]");
  EXPECT_EQ(complaint("qwen3_moe", {{"decoder_sparse_step", 0}}), "'decoder_sparse_step' is 0: it must be at least 1");
  EXPECT_EQ(complaint("qwen3_moe", {{"mlp_only_layers", {0, "a"}}}),
            "'mlp_only_layers' is [0,\"a\"]: it must be a list of whole numbers");
  // Sizes are asked for only where layers have them.
  EXPECT_EQ(complaint("qwen3_moe", {{"intermediate_size", nullptr}}), "");
  EXPECT_EQ(complaint("qwen3_moe", {{"intermediate_size", nullptr}, {"mlp_only_layers", {0}}}),
            "lacks 'intermediate_size'");
  EXPECT_EQ(complaint("qwen3_moe", {{"moe_intermediate_size", nullptr}, {"mlp_only_layers", {0, 1}}}), "");
}

TEST(HuggingFaceConfig, SlidingWindowsOfQwen3Moe) {
  EXPECT_EQ(patched("qwen3_moe", {{"sliding_window", 5}}).attention.window, 0);
  EXPECT_EQ(patched("qwen3_moe", {{"sliding_window", 5}, {"use_sliding_window", true}}).attention.window, 5);
  const ModelConfig config =
      patched("qwen3_moe", {{"sliding_window", 5}, {"use_sliding_window", true}, {"max_window_layers", 1}});
  EXPECT_EQ(config.attention_of(0).window, 5);
  EXPECT_EQ(config.attention_of(2).window, 5);
  EXPECT_EQ(complaint("qwen3_moe", {{"sliding_window", 0}, {"use_sliding_window", true}}),
            "'sliding_window' is 0: it must be at least 1");
  EXPECT_EQ(complaint("mixtral", {{"sliding_window", -1}}), "'sliding_window' is -1: it must be at least 1");
  EXPECT_EQ(patched("llama", {{"sliding_window", 5}}).attention.window, 0);  // Hugging Face's llama has none
}

TEST(HuggingFaceConfig, HeadsAndTheirSizes) {
  EXPECT_EQ(patched("llama", {{"head_dim", nullptr}}).attention.head_dim, 8);
  EXPECT_EQ(patched("llama", {{"num_key_value_heads", nullptr}}).attention.kv_heads, 4);
  EXPECT_EQ(complaint("llama", {{"num_key_value_heads", 3}}),
            "'num_key_value_heads' is 3: it must divide num_attention_heads, 4");
  EXPECT_EQ(complaint("llama", {{"head_dim", nullptr}, {"num_attention_heads", 6}}),
            "'num_attention_heads' is 6: without 'head_dim' it must divide hidden_size, 32");
  EXPECT_EQ(complaint("llama", {{"head_dim", 7}}), "'head_dim' is 7: heads of 7 elements cannot be rotated in pairs");
  for (const char* family : {"mixtral", "qwen3_moe"}) {  // Hugging Face's default is a number of its own
    EXPECT_EQ(complaint(family, {{"num_key_value_heads", nullptr}}), "lacks 'num_key_value_heads'");
  }
  const ModelFolder folder("mixtral");  // null is not absent: as many as heads
  folder.set_null("num_key_value_heads");
  EXPECT_EQ(read_hugging_face_config(folder.path()).config.attention.kv_heads, 4);
  EXPECT_EQ(patched("qwen3_moe", {{"attention_bias", true}}).attention.output_bias, true);
}

TEST(HuggingFaceConfig, DefaultsAreThoseOfHuggingFace) {
  const Json none = {{"rms_norm_eps", nullptr},    {"tie_word_embeddings", nullptr}, {"attention_bias", nullptr},
                     {"mlp_bias", nullptr},        {"hidden_act", nullptr},          {"attention_dropout", nullptr},
                     {"rope_parameters", nullptr}, {"norm_topk_prob", nullptr},      {"output_router_logits", nullptr}};
  const ModelConfig llama = patched("llama_b", none);
  EXPECT_EQ(llama.norm_epsilon, 1e-6);
  EXPECT_FALSE(llama.tied_embeddings);
  EXPECT_FALSE(llama.attention.qkv_bias);
  EXPECT_EQ(llama.attention.rope.base, 1e4);
  EXPECT_EQ(llama.attention.rope.scaling, RopeSpec::Scaling::none);
  EXPECT_EQ(patched("mixtral", none).norm_epsilon, 1e-5);
  EXPECT_EQ(patched("mixtral", none).attention.rope.base, 1e6);
  EXPECT_EQ(patched("qwen3_moe", none).norm_epsilon, 1e-6);
  EXPECT_FALSE(patched("qwen3_moe", none).experts.router.normalise);
}

TEST(HuggingFaceConfig, MissingKeysAreNamed) {
  const auto each = [](const std::string& golden, const std::vector<std::string>& keys) {
    for (const std::string& key : keys) {
      EXPECT_EQ(complaint(golden, {{key, nullptr}}), "lacks '" + key + "'") << golden;
    }
  };
  each("llama",
       {"model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"});
  each("mixtral", {"intermediate_size", "num_experts_per_tok"});
  each("qwen3_moe", {"moe_intermediate_size", "num_experts_per_tok"});
  EXPECT_EQ(complaint("qwen3_moe", {{"num_local_experts", nullptr}}), "lacks 'num_experts'");
}

TEST(HuggingFaceConfig, WhatWeftDoesNotDoIsRefused) {
  EXPECT_TRUE(
      complaint("llama", {{"model_type", "gpt2"}})
          .starts_with(
              "'model_type' is \"gpt2\", a family that Weft does not know; it knows llama, mixtral, qwen3_moe, "));
  EXPECT_EQ(complaint("llama", {{"hidden_act", "gelu"}}),
            "'hidden_act' is \"gelu\": Weft supports gated MLPs of this family only with \"silu\"");
  EXPECT_EQ(complaint("llama", {{"hidden_act", "swish"}}), "");
  EXPECT_EQ(complaint("mixtral", {{"hidden_act", "relu"}}),
            "'hidden_act' is \"relu\": Weft supports gated MLPs of this family only with \"silu\"");
  EXPECT_EQ(complaint("llama", {{"attention_dropout", 0.1}}),
            "'attention_dropout' is 0.1: Weft trains without dropout; set it to 0");
  EXPECT_EQ(complaint("mixtral", {{"router_jitter_noise", 0.01}}),
            "'router_jitter_noise' is 0.01: Weft trains without noise; set it to 0");
  EXPECT_EQ(complaint("llama", {{"quantization_config", {{"quant_method", "fp8"}}}}),
            "'quantization_config' is {\"quant_method\":\"fp8\"}: quantised weights are not read; save the model as "
            "bfloat16 or float32");
  const std::string balancing =
      "'output_router_logits' is true: it adds a balancing loss (router_aux_loss_coef), which Weft does not support; "
      "set it to "
      "false";
  EXPECT_EQ(complaint("mixtral", {{"output_router_logits", true}, {"router_aux_loss_coef", 0.02}}), balancing);
  EXPECT_EQ(complaint("mixtral", {{"output_router_logits", true}, {"router_aux_loss_coef", nullptr}}), balancing);
  EXPECT_EQ(complaint("mixtral", {{"output_router_logits", true}}), "");  // the golden's factor is 0
  EXPECT_EQ(complaint("mixtral", {{"router_aux_loss_coef", 0.02}}), "");  // not asked for
}

TEST(HuggingFaceConfig, ValuesOfAnotherKind) {
  EXPECT_EQ(complaint("llama", {{"hidden_size", "32"}}), "'hidden_size' is \"32\": it must be a whole number");
  EXPECT_EQ(complaint("llama", {{"hidden_size", 32.5}}), "'hidden_size' is 32.5: it must be a whole number");
  EXPECT_EQ(complaint("llama", {{"hidden_size", 0}}), "'hidden_size' is 0: it must be at least 1");
  EXPECT_EQ(complaint("llama", {{"vocab_size", std::uint64_t{1} << 63}}),
            "'vocab_size' is 9223372036854775808: it must be at most 2147483647");
  EXPECT_EQ(complaint("llama", {{"num_hidden_layers", 1000000000}}),
            "'num_hidden_layers' is 1000000000: it must be at most 10000");
  EXPECT_EQ(complaint("llama", {{"tie_word_embeddings", 1}}), "'tie_word_embeddings' is 1: it must be true or false");
  EXPECT_EQ(complaint("llama", {{"rms_norm_eps", "small"}}), "'rms_norm_eps' is \"small\": it must be a number");
  EXPECT_EQ(complaint("llama", {{"hidden_act", 3}}), "'hidden_act' is 3: it must be text");
  EXPECT_EQ(complaint("llama", {{"rope_parameters", 3}}), "'rope_parameters' is 3: it must be an object");
  EXPECT_EQ(complaint("mixtral", {{"num_experts_per_tok", 5}}), "'num_experts_per_tok' is 5: there are 4 experts");
  EXPECT_EQ(complaint("qwen3_moe", {{"num_experts", 7}}), "'num_experts' is 7: num_local_experts is 8");
}

TEST(HuggingFaceConfig, FoldersWithoutAConfig) {
  const ModelFolder folder;
  const std::string where = folder.path().string();
  EXPECT_EQ(message_of<UserError>([&] { read_hugging_face(folder.path()); }),
            "cannot read " + where + "/config.json: No such file or directory");
  EXPECT_EQ(message_of<UserError>([&] { read_hugging_face(folder.path() / "none"); }),
            where + "/none: not a folder; a Hugging Face model is a folder with config.json and safetensors");
  folder.write("config.json", "{");
  EXPECT_EQ(
      message_of<UserError>([&] { read_hugging_face(folder.path()); }).find(where + "/config.json: not valid JSON: "),
      0u);
  folder.write("config.json", "[]");
  EXPECT_EQ(message_of<UserError>([&] { read_hugging_face(folder.path()); }),
            where + "/config.json: must be an object, is []");
}

}  // namespace
}  // namespace weft
