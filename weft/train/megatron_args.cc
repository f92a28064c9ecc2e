// The model that the args of a Megatron run describe, as Weft's flags.
#include <algorithm>
#include <array>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/pattern/pattern.h"
#include "weft/train/checkpoint_args.h"

namespace weft {
namespace {

using Form = FlagValue::Form;

// An arg that means the same as a flag.
struct SameArg {
  std::string_view arg, flag;
  std::string_view layers = "";  // only where the pattern has one of them
};
constexpr SameArg same_args[] = {
    {"hidden_size", "--hidden-size"},
    {"ffn_hidden_size", "--ffn-hidden-size"},
    {"activation_func_clamp_value", "--activation-func-clamp-value"},
    {"glu_linear_offset", "--glu-linear-offset"},
    {"add_bias_linear", "--add-bias-linear"},
    {"norm_epsilon", "--norm-epsilon"},
    {"layernorm_epsilon", "--norm-epsilon"},
    {"apply_layernorm_1p", "--apply-layernorm-1p"},
    {"init_method_std", "--init-method-std"},
    {"mtp_loss_scaling_factor", "--mtp-loss-scaling-factor"},
    {"max_position_embeddings", "--max-position-embeddings"},
    {"make_vocab_size_divisible_by", "--make-vocab-size-divisible-by"},

    {"num_attention_heads", "--num-attention-heads", "*+D"},
    {"kv_channels", "--kv-channels", "*"},
    {"qk_layernorm", "--qk-layernorm", "*"},
    {"attention_output_gate", "--attention-output-gate", "*"},
    {"add_qkv_bias", "--add-qkv-bias", "*"},
    {"softmax_type", "--softmax-type", "*"},
    {"rotary_base", "--rotary-base", "*+D"},
    {"rotary_percent", "--rotary-percent", "*"},
    {"rotary_interleaved", "--rotary-interleaved", "*"},
    {"use_rope_scaling", "--use-rope-scaling", "*"},
    {"rope_scaling_factor", "--rope-scaling-factor", "*"},

    {"q_lora_rank", "--q-lora-rank", "+D"},
    {"kv_lora_rank", "--kv-lora-rank", "+D"},
    {"qk_head_dim", "--qk-head-dim", "+D"},
    {"qk_pos_emb_head_dim", "--qk-pos-emb-head-dim", "+D"},
    {"v_head_dim", "--v-head-dim", "+D"},
    {"dsa_indexer_n_heads", "--dsa-indexer-n-heads", "D"},
    {"dsa_indexer_head_dim", "--dsa-indexer-head-dim", "D"},
    {"dsa_indexer_topk", "--dsa-indexer-topk", "D"},
    {"dsa_indexer_loss_coeff", "--dsa-indexer-loss-coeff", "D"},

    {"num_experts", "--num-experts", "E"},
    {"moe_ffn_hidden_size", "--moe-ffn-hidden-size", "E"},
    {"moe_router_topk", "--moe-router-topk", "E"},
    {"moe_router_score_function", "--moe-router-score-function", "E"},
    {"moe_router_pre_softmax", "--moe-router-pre-softmax", "E"},
    {"moe_router_topk_scaling_factor", "--moe-router-topk-scaling-factor", "E"},
    {"moe_router_num_groups", "--moe-router-num-groups", "E"},
    {"moe_router_group_topk", "--moe-router-group-topk", "E"},
    {"moe_shared_expert_intermediate_size", "--moe-shared-expert-intermediate-size", "E"},
    {"moe_shared_expert_gate", "--moe-shared-expert-gate", "E"},
    {"moe_latent_size", "--moe-latent-size", "E"},
    {"moe_router_load_balancing_type", "--moe-router-load-balancing-type", "E"},
    {"moe_aux_loss_coeff", "--moe-aux-loss-coeff", "E"},
    {"moe_z_loss_coeff", "--moe-z-loss-coeff", "E"},
    {"moe_router_enable_expert_bias", "--moe-router-enable-expert-bias", "E"},
    {"moe_router_bias_update_rate", "--moe-router-bias-update-rate", "E"},
    {"moe_expert_capacity_factor", "--moe-expert-capacity-factor", "E"},
    {"moe_token_drop_policy", "--moe-token-drop-policy", "E"},
    {"moe_pad_expert_input_to_capacity", "--moe-pad-expert-input-to-capacity", "E"},

    {"mamba_state_dim", "--mamba-state-dim", "M"},
    {"mamba_head_dim", "--mamba-head-dim", "M"},
    {"mamba_num_heads", "--mamba-num-heads", "M"},
    {"mamba_num_groups", "--mamba-num-groups", "M"},
    {"mamba_conv_kernel_dim", "--mamba-conv-kernel-dim", "M"},
    {"linear_num_value_heads", "--linear-num-value-heads", "G"},
    {"linear_num_key_heads", "--linear-num-key-heads", "G"},
    {"linear_value_head_dim", "--linear-value-head-dim", "G"},
    {"linear_key_head_dim", "--linear-key-head-dim", "G"},
    {"linear_conv_kernel_dim", "--linear-conv-kernel-dim", "G"},
};
// The same for YaRN, wherever it is used.
constexpr SameArg yarn_args[] = {
    {"rotary_scaling_factor", "--rotary-scaling-factor"},
    {"original_max_position_embeddings", "--original-max-position-embeddings"},
    {"beta_fast", "--beta-fast"},
    {"beta_slow", "--beta-slow"},
    {"mscale", "--mscale"},
    {"mscale_all_dim", "--mscale-all-dim"},
};

// An arg that changes the model and of which Weft has one value alone. Absent and None are fine, and so is false.
struct OnlyArg {
  std::string_view arg;
  std::string_view value;  // as JSON; "": no other
  std::string_view reason;
};
constexpr OnlyArg only_args[] = {
    {"normalization", "\"RMSNorm\"", "Weft has only RMSNorm"},
    {"attention_dropout", "0", "Weft has no dropout"},
    {"hidden_dropout", "0", "Weft has no dropout"},
    {"apply_residual_connection_post_layernorm", "", "Weft adds the residual before the norm"},
    {"apply_query_key_layer_scaling", "", "it is for fp16, which Weft does not have"},
    {"fp32_residual_connection", "", "the residual stream has the type of the model"},
    {"heterogeneous_layers_config_path", "", "Weft has no layers of different sizes"},
    {"window_attn_skip_freq", "", "all attention layers of a model built from flags are alike"},
    {"no_rope_freq", "", "all attention layers of a model built from flags are alike"},
    {"moe_input_jitter_eps", "", "Weft adds no noise to the router's input"},
    {"moe_apply_probs_on_input", "", "Weft multiplies the experts' outputs by their probabilities"},
    {"moe_mlp_glu_interleave_size", "", "its checkpoints have the rows of gate and linear factor interleaved"},
    {"moe_shared_expert_glu_interleave_size", "",
     "its checkpoints have the rows of gate and linear factor interleaved"},
    {"mtp_use_repeated_layer", "", "every MTP depth has layers of its own in Weft"},
    {"mtp_hsm", "", "Weft does not mix hidden states of MTP depths"},
    {"mtp_detach_heads", "", "gradients of MTP losses reach the whole model in Weft"},
};

class Args {
 public:
  explicit Args(const Json& args) : args_(args) {}

  // Null where it is absent or None.
  const Json* find(std::string_view name) const {
    const auto at = args_.find(std::string(name));
    return at == args_.end() || at->is_null() ? nullptr : &*at;
  }
  bool is_true(std::string_view name) const {
    const Json* const value = find(name);
    return value != nullptr && value->is_boolean() && value->get<bool>();
  }
  std::int64_t count(std::string_view name) const {
    const Json* const value = find(name);
    return value != nullptr && value->is_number_integer() ? value->get<std::int64_t>() : 0;
  }
  std::string text(std::string_view name) const {
    const Json* const value = find(name);
    return value != nullptr && value->is_string() ? value->get<std::string>() : "";
  }
  std::string dump(std::string_view name) const {
    const Json* const value = find(name);
    return value == nullptr ? "None" : value->is_string() ? value->get<std::string>() : value->dump();
  }

  void add(std::string_view name, std::string_view flag) {
    const Json* const value = find(name);
    if (value != nullptr) set(name, flag, value_of(*value));
  }
  void set(std::string_view name, std::string_view flag, const FlagValue& value) {
    found_.push_back({std::string(name), std::string(flag), value});
  }
  void set(std::string_view name, std::string_view flag, std::string text) {
    set(name, flag, FlagValue{Form::words, {std::move(text)}});
  }
  void toggle(std::string_view name, std::string_view flag, bool value) {
    set(name, flag, FlagValue{Form::boolean, {value ? "true" : "false"}});
  }
  [[noreturn]] void refuse(std::string_view name, std::string_view reason) const {
    throw UserError("{} is {}: {}; a model made of flags cannot have it", name, dump(name), reason);
  }
  std::vector<CheckpointArg> take() { return std::move(found_); }

 private:
  static std::string word_of(const Json& value) {
    if (value.is_number_float()) return fmt::format("{}", value.get<double>());
    return value.is_string() ? value.get<std::string>() : value.dump();
  }
  static FlagValue value_of(const Json& value) {
    if (value.is_boolean()) return {Form::boolean, {value.get<bool>() ? "true" : "false"}};
    FlagValue words{Form::words, {}};
    if (value.is_array())
      for (const Json& item : value) words.words.push_back(word_of(item));
    else
      words.words.push_back(word_of(value));
    return words;
  }

  const Json& args_;
  std::vector<CheckpointArg> found_;
};

void check_only(const Args& args) {
  for (const OnlyArg& only : only_args) {
    const Json* const value = args.find(only.arg);
    if (value == nullptr || (value->is_boolean() && !value->get<bool>())) continue;
    if (!only.value.empty() && *value == Json::parse(only.value)) continue;
    args.refuse(only.arg, only.reason);
  }
}

// The layers; returns which symbols there are.
std::string add_layers(Args& args) {
  for (const char* name : {"hybrid_layer_pattern", "hybrid_override_pattern"}) {
    const std::string pattern = args.text(name);
    if (pattern.empty()) continue;
    args.set(name, "--pattern", pattern);
    return pattern;
  }
  if (args.is_true("is_hybrid_model"))
    throw UserError(
        "hybrid_layer_pattern is None, and nothing else gives the layers of a hybrid model; give --pattern");
  if (args.find("num_layers") == nullptr) throw UserError("num_layers is None: there is no number of layers");
  args.add("num_layers", "--num-layers");
  std::string symbols = "-";
  if (args.count("num_experts") > 0) {
    symbols += "E";
    if (const Json* const choice = args.find("moe_layer_freq"); choice != nullptr && *choice != 1)
      args.set("moe_layer_freq", "--moe-layer-freq", choice->dump());
  }
  const std::string variant = args.text("experimental_attention_variant");
  if (!variant.empty()) {
    args.add("experimental_attention_variant", "--experimental-attention-variant");
    if (const Json* const choice = args.find("linear_attention_freq"))
      args.set("linear_attention_freq", "--linear-attention-freq", choice->dump());
    if (variant == "gated_delta_net") symbols += "G";
    if (variant == "dsa") symbols += "D";
  }
  if (args.is_true("multi_latent_attention")) {
    args.toggle("multi_latent_attention", "--multi-latent-attention", true);
    symbols += "+";
  } else {
    symbols += "*";
  }
  if (args.count("mtp_num_layers") > 0) args.add("mtp_num_layers", "--mtp-num-layers");
  return symbols;
}

void add_activation(Args& args) {
  if (args.is_true("swiglu")) return args.set("swiglu", "--activation", "swiglu");
  if (args.is_true("quick_geglu")) return args.set("quick_geglu", "--activation", "quick-geglu");
  if (args.is_true("squared_relu")) return args.set("squared_relu", "--activation", "squared-relu");
  // Megatron's fused kernel, which needs biases, computes the tanh approximation; without it GELU is exact.
  const bool fused = args.is_true("bias_gelu_fusion") && args.is_true("add_bias_linear");
  args.set(fused ? "bias_gelu_fusion" : "swiglu", "--activation", fused ? "gelu" : "gelu-erf");
}

void add_attention(Args& args, std::string_view symbols) {
  const bool plain = symbols.find('*') != std::string_view::npos;
  const bool latent = symbols.find_first_of("+D") != std::string_view::npos;
  if (plain) {
    if (args.is_true("group_query_attention")) args.add("num_query_groups", "--num-query-groups");
    args.add("position_embedding_type", "--position-embedding-type");
    if (const Json* const window = args.find("window_size");
        window != nullptr && window->is_array() && window->size() == 2)
      args.set("window_size", "--window-size", fmt::format("{},{}", (*window)[0].dump(), (*window)[1].dump()));
    if (args.text("position_embedding_type") == "yarn")
      for (const SameArg& same : yarn_args) args.add(same.arg, same.flag);
  }
  if (latent) {
    if (args.find("qk_layernorm") != nullptr && !args.is_true("qk_layernorm"))
      args.refuse("qk_layernorm", "multi-latent attention normalises its latents in Weft");
    if (args.text("rope_type") != "rope")
      for (const SameArg& same : yarn_args) args.add(same.arg, same.flag);
  }
}

// Weft's NullTokenizer has one id more than --vocab-size, the end of document, as Megatron's.
void add_vocabulary(Args& args) {
  const std::int64_t ids = args.count("vocab_size"), padded = args.count("padded_vocab_size");
  if (ids == 0 && padded == 0) return;
  const bool fits = ids > 0 && (padded == 0 || ids < padded);
  args.set("tokenizer_type", "--tokenizer-type", "NullTokenizer");
  args.set(fits ? "vocab_size" : "padded_vocab_size", "--vocab-size", fmt::format("{}", fits ? ids : padded - 1));
}

}  // namespace

std::vector<CheckpointArg> model_flags_of_megatron(const Json& json) {
  Args args(json);
  check_only(args);
  const std::string symbols = add_layers(args);
  add_activation(args);
  add_attention(args, symbols);
  add_vocabulary(args);
  if (args.find("untie_embeddings_and_output_weights") != nullptr)
    args.toggle("untie_embeddings_and_output_weights", "--tie-embeddings",
                !args.is_true("untie_embeddings_and_output_weights"));
  for (const SameArg& same : same_args)
    if (same.layers.empty() || symbols.find_first_of(same.layers) != std::string::npos) args.add(same.arg, same.flag);
  return args.take();
}

}  // namespace weft
