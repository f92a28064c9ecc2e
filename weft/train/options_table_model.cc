// The flags of `weft train` that describe the model, and how its experts are balanced.
#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/train/options.h"

namespace weft {
namespace {

void add_general_model_flags(FlagTable& flags, ModelOptions& model) {
  flags.section("Model");
  flags
      .add("--pattern", model.pattern, "TEXT",
           "The layers, in order: M Mamba-2, G gated delta net, * attention, + multi-latent attention, D its sparse "
           "form, - MLP, E experts. [..] groups layers, | separates stages, / precedes each depth of multi-token "
           "prediction.")
      .alias("--hybrid-layer-pattern")
      .alias("--hybrid-override-pattern")
      .standard(default_pattern);
  add_layer_flags(flags, model);
  flags.add(
      "--hf", model.hf, "DIR",
      "Load the model and its weights from a Hugging Face folder or a Weft checkpoint instead of building one from "
      "flags. A config.json alone begins with random weights.");
  flags.add("--hidden-size", model.hidden_size, "N", "Width of the residual stream.").at_least(1);
  flags.add("--ffn-hidden-size", model.ffn_hidden_size, "N", "Inner width of the MLP.")
      .at_least(1)
      .standard("4 x hidden-size");
  flags
      .choice(
          "--activation", model.activation,
          {{"swiglu", ActivationKind::swiglu},
           {"squared-relu", ActivationKind::squared_relu},
           {"gelu", ActivationKind::gelu},
           {"gelu-erf", ActivationKind::gelu_erf},
           {"quick-geglu", ActivationKind::quick_geglu}},
          "Activation of the MLP and the experts. gelu is the tanh approximation, gelu-erf the exact form; swiglu and "
          "quick-geglu are gated.")
      .means("--swiglu", "swiglu")
      .means("--squared-relu", "squared-relu")
      .means("--gelu", "gelu")
      .means("--quick-geglu", "quick-geglu");
  flags
      .add("--activation-func-clamp-value", model.activation_func_clamp_value, "X",
           "Clamp swiglu and quick-geglu: the gate to at most X, the linear factor to between -X and X.")
      .above(0)
      .standard("no clamp");
  flags.add("--glu-linear-offset", model.glu_linear_offset, "X", "Offset that quick-geglu adds to its linear factor.");
  flags.add("--add-bias-linear", model.add_bias_linear, "Add biases to attention, MLP, experts and router.")
      .negation("--disable-bias-linear");
  flags.add("--norm-epsilon", model.norm_epsilon, "X", "Epsilon that RMSNorm adds to the mean square.").above(0);
  flags.add("--apply-layernorm-1p", model.apply_layernorm_1p, "Store norm weights minus one (zero-centred).");
  flags
      .add("--tie-embeddings", model.tie_embeddings,
           "Share one weight matrix between the embedding and the output head.")
      .negation("--untie-embeddings-and-output-weights");
  flags.add("--init-method-std", model.init_method_std, "X", "Standard deviation of the initial weights.").at_least(0);
  flags
      .add("--mtp-loss-scaling-factor", model.mtp_loss_scaling_factor, "X",
           "Weight of the mean loss of the multi-token prediction depths, relative to the main loss.")
      .above(0);
  flags.add("--max-position-embeddings", model.max_position_embeddings, "N", "Longest sequence the model accepts.")
      .at_least(1)
      .standard("no limit");
}

// "128": a query sees 128 keys, including its own. Megatron writes the same as "127,0": 127 before it, none after.
void store_window(const std::string& text, std::int64_t& window) {
  const auto parts = split(text, ',');
  std::int64_t before = 0, after = 0;
  const bool pair = parts.size() == 2;
  if (parts.size() > 2 || !parse_int(trim(parts[0]), before) || (pair && !parse_int(trim(parts[1]), after)))
    throw UserError("--window-size: '{}' is neither N nor BEFORE,0", text);
  if (after != 0)
    throw UserError("--window-size {}: attention is causal, so a query sees no later keys; use BEFORE,0", text);
  if (!pair && before < 1) throw UserError("--window-size: {} is out of range; it must be at least 1", before);
  window = !pair ? before : before < 0 ? 0 : before + 1;
}

void add_attention_flags(FlagTable& flags, ModelOptions& model) {
  flags.section("Attention");
  flags.add("--num-attention-heads", model.num_attention_heads, "N", "Number of query heads.").at_least(1);
  flags
      .add("--num-query-groups", model.num_query_groups, "N",
           "Number of key and value heads. It works without --group-query-attention.")
      .at_least(1)
      .standard("num-attention-heads; 1 with --group-query-attention");
  flags.add("--group-query-attention", model.group_query_attention, "Let query heads share key and value heads.");
  flags.add("--kv-channels", model.kv_channels, "N", "Width of an attention head.")
      .at_least(1)
      .standard("hidden-size / num-attention-heads");
  flags.add("--qk-layernorm", model.qk_layernorm, "Normalise each query and key head with RMSNorm.").no_form();
  flags.add("--attention-output-gate", model.attention_output_gate,
            "Multiply the output of attention by a learned sigmoid gate.");
  flags.add("--add-qkv-bias", model.add_qkv_bias, "Add biases to the query, key and value projections only.").no_form();
  flags
      .custom(
          "--window-size", "N", [&model](const std::string& text) { store_window(text, model.window_size); },
          [&model] { return model.window_size == 0 ? "" : fmt::format("{}", model.window_size); },
          "Sliding window: the number of keys a query sees, including its own. Megatron's BEFORE,0 means BEFORE + 1.")
      .standard("no window");
  flags
      .choice("--position-embedding-type", model.positions,
              {{"rope", PositionKind::rope}, {"none", PositionKind::none}, {"yarn", PositionKind::yarn}},
              "How attention encodes positions: rotary, not at all, or rotary with YaRN scaling.")
      .means("--no-rope", "none")
      .means("--use-rotary-position-embeddings", "rope")
      .lacks("learned_absolute", "Weft has no learned positions")
      .lacks("relative", "Weft has no relative position bias")
      .lacks("mrope", "Weft has no multimodal rotary positions yet");
  flags.add("--rotary-base", model.rotary_base, "X", "Base of the rotary frequencies.").above(0);
  flags.add("--rotary-percent", model.rotary_percent, "X", "Share of a head's elements that rotate.")
      .above(0)
      .at_most(1);
  flags.add("--rotary-interleaved", model.rotary_interleaved,
            "Rotate neighbouring elements as pairs, instead of pairing the two halves of a head.");
  flags.add("--use-rope-scaling", model.use_rope_scaling,
            "Scale the rotary frequencies as Llama 3 does, from 8192 positions.");
  flags.add("--rope-scaling-factor", model.rope_scaling_factor, "X", "Factor of --use-rope-scaling.").above(0);
  flags
      .add("--rotary-scaling-factor", model.rotary_scaling_factor, "X",
           "YaRN: how many times longer sequences may be than in the original training.")
      .above(0);
  flags
      .add("--original-max-position-embeddings", model.original_max_position_embeddings, "N",
           "YaRN: number of positions in the original training.")
      .at_least(1);
  flags
      .add("--beta-fast", model.beta_fast, "X",
           "YaRN: dimensions that make more rotations than this keep their frequency.")
      .above(0);
  flags
      .add("--beta-slow", model.beta_slow, "X",
           "YaRN: dimensions that make fewer rotations than this are scaled fully.")
      .above(0);
  flags
      .add("--mscale", model.mscale, "X",
           "YaRN: cosine and sine are multiplied by m(mscale) / m(mscale-all-dim); see docs/numerics.md.")
      .at_least(0);
  flags.add("--mscale-all-dim", model.mscale_all_dim, "X", "YaRN: the divisor in the factor of --mscale.").at_least(0);
  flags
      .choice("--softmax-type", model.softmax_sinks, {{"vanilla", false}, {"learnable", true}},
              "learnable: each head learns an attention sink, one more logit in the softmax's denominator.")
      .lacks("off-by-one", "Weft has learned sinks; use learnable");
}

void add_latent_attention_flags(FlagTable& flags, ModelOptions& model) {
  flags.section("Multi-latent attention");
  flags.add("--q-lora-rank", model.q_lora_rank, "N", "Width of the latent that queries are projected through.")
      .at_least(1)
      .standard("queries are projected directly");
  flags.add("--kv-lora-rank", model.kv_lora_rank, "N", "Width of the latent that keys and values share.").at_least(1);
  flags.add("--qk-head-dim", model.qk_head_dim, "N", "Width of the part of a query or key head that does not rotate.")
      .at_least(1);
  flags
      .add("--qk-pos-emb-head-dim", model.qk_pos_emb_head_dim, "N",
           "Width of the part of a query or key head that rotates; all heads share the key's part.")
      .at_least(2);
  flags.add("--v-head-dim", model.v_head_dim, "N", "Width of a value head.").at_least(1);
  flags.add("--dsa-indexer-n-heads", model.dsa_indexer_n_heads, "N", "Sparse attention (D): number of indexer heads.")
      .at_least(1);
  flags
      .add("--dsa-indexer-head-dim", model.dsa_indexer_head_dim, "N", "Sparse attention (D): width of an indexer head.")
      .at_least(1);
  flags.add("--dsa-indexer-topk", model.dsa_indexer_topk, "K", "Sparse attention (D): number of keys a query sees.")
      .at_least(1);
  flags
      .add("--dsa-indexer-loss-coeff", model.dsa_indexer_loss_coeff, "X",
           "Sparse attention (D): coefficient of the loss that trains the indexer to agree with attention over the "
           "chosen keys. 0: the indexer is not trained.")
      .at_least(0);
}

void add_expert_flags(FlagTable& flags, ModelOptions& model) {
  flags.section("Experts");
  flags.add("--num-experts", model.num_experts, "N", "Number of experts in each E layer.")
      .at_least(1)
      .standard("8 if the pattern has E");
  flags.add("--moe-ffn-hidden-size", model.moe_ffn_hidden_size, "N", "Inner width of an expert.")
      .at_least(1)
      .standard("ffn-hidden-size");
  flags.add("--moe-router-topk", model.moe_router_topk, "K", "Number of experts each token is sent to.").at_least(1);
  flags
      .choice("--moe-router-score-function", model.moe_router_score_function,
              {{"softmax", RouterSpec::Score::softmax}, {"sigmoid", RouterSpec::Score::sigmoid}},
              "Function that turns router logits into scores.")
      .lacks("sqrtsoftplus", "Weft has no such score");
  flags.add("--moe-router-pre-softmax", model.moe_router_pre_softmax,
            "Apply the softmax over all experts before choosing, instead of over the chosen ones.");
  flags.add("--moe-router-norm-topk", model.moe_router_norm_topk, "Divide the chosen scores by their sum.")
      .no_form()
      .standard("true for sigmoid with topk > 1, and for a softmax over the chosen");
  flags
      .add("--moe-router-topk-scaling-factor", model.moe_router_topk_scaling_factor, "X",
           "Factor that the chosen scores are multiplied by.")
      .above(0);
  flags
      .add("--moe-router-num-groups", model.moe_router_num_groups, "N",
           "Number of groups the experts are divided into for group-limited routing.")
      .at_least(1)
      .standard("none");
  flags
      .add("--moe-router-group-topk", model.moe_router_group_topk, "N",
           "Number of groups that a token's experts are chosen from.")
      .at_least(1)
      .standard("none");
  flags
      .add("--moe-shared-expert-intermediate-size", model.moe_shared_expert_intermediate_size, "N",
           "Inner width of the shared expert.")
      .at_least(1)
      .standard("no shared expert");
  flags
      .add("--moe-latent-size", model.moe_latent_size, "N",
           "Width that tokens are projected to before they are sent to the experts.")
      .at_least(1)
      .standard("hidden-size");
  flags.add("--moe-shared-expert-gate", model.moe_shared_expert_gate,
            "Multiply the shared expert's output by a learned sigmoid gate.");
}

void add_recurrent_flags(FlagTable& flags, ModelOptions& model) {
  flags.section("Recurrent layers");
  flags.add("--mamba-state-dim", model.mamba_state_dim, "N", "Mamba (M): state size of a channel.").at_least(1);
  flags.add("--mamba-head-dim", model.mamba_head_dim, "N", "Mamba (M): width of a head.").at_least(1);
  flags.add("--mamba-num-heads", model.mamba_num_heads, "N", "Mamba (M): number of heads.")
      .at_least(1)
      .standard("2 x hidden-size / mamba-head-dim");
  flags
      .add("--mamba-num-groups", model.mamba_num_groups, "N",
           "Mamba (M): number of groups of heads that share B and C.")
      .at_least(1)
      .standard("8, or mamba-num-heads if that is fewer");
  flags.add("--mamba-conv-kernel-dim", model.mamba_conv_kernel_dim, "N", "Mamba (M): taps of the convolution.")
      .at_least(1)
      .at_most(16);
  flags
      .add("--mamba-chunk-size", model.mamba_chunk_size, "N",
           "Mamba (M): tokens per chunk of the scan. Another size rounds differently.")
      .at_least(1);
  flags
      .add("--linear-num-value-heads", model.linear_num_value_heads, "N", "Gated delta net (G): number of value heads.")
      .at_least(1)
      .standard("2 x hidden-size / linear-value-head-dim");
  flags
      .add("--linear-num-key-heads", model.linear_num_key_heads, "N",
           "Gated delta net (G): number of query and key heads.")
      .at_least(1)
      .standard("linear-num-value-heads / 2");
  flags.add("--linear-value-head-dim", model.linear_value_head_dim, "N", "Gated delta net (G): width of a value head.")
      .at_least(1);
  flags
      .add("--linear-key-head-dim", model.linear_key_head_dim, "N",
           "Gated delta net (G): width of a query or key head.")
      .at_least(1);
  flags
      .add("--linear-conv-kernel-dim", model.linear_conv_kernel_dim, "N",
           "Gated delta net (G): taps of the convolution.")
      .at_least(1)
      .at_most(16);
}

// How a model is trained, not what it is: these also apply to a Hugging Face model.
void add_balance_flags(FlagTable& flags, ModelOptions& model) {
  flags.section("Balance of experts");
  flags.add("--moe-router-load-balancing-type", model.moe_router_load_balancing_type, "KIND",
            "Losses that balance the experts: one or more of aux_loss, seq_aux_loss and global_aux_loss, or none.");
  flags.add("--moe-aux-loss-coeff", model.moe_aux_loss_coeff, "X",
            "Coefficients of the losses of --moe-router-load-balancing-type, in the same order.");
  flags.add("--moe-z-loss-coeff", model.moe_z_loss_coeff, "X", "Coefficient of the router's z-loss.").at_least(0);
  flags.add(
      "--moe-router-enable-expert-bias", model.moe_router_enable_expert_bias,
      "Correct the choice of experts by a bias that follows their load, updated once per step. Needs sigmoid scores.");
  flags
      .add("--moe-router-bias-update-rate", model.moe_router_bias_update_rate, "X",
           "How far the expert bias moves in a step.")
      .at_least(0);
  flags
      .add("--moe-expert-capacity-factor", model.moe_expert_capacity_factor, "X",
           "An expert takes at most X times its average share of a micro-batch's tokens and drops the rest.")
      .standard("none: no token is dropped");
  flags.choice("--moe-token-drop-policy", model.moe_token_drop_policy,
               {{"probs", DropChoices::Policy::probabilities}, {"position", DropChoices::Policy::position}},
               "Which tokens a full expert keeps: those with the largest weights, or the first.");
  flags.add("--moe-pad-expert-input-to-capacity", model.moe_pad_expert_input_to_capacity,
            "Pad the input of every expert to its capacity.");
  flags.add("--moe-router-force-load-balancing", model.moe_router_force_load_balancing,
            "Route by fixed random numbers instead of the router's logits, to measure speed under an even load.");
}

}  // namespace

void add_model_flags(FlagTable& flags, ModelOptions& model) {
  add_general_model_flags(flags, model);
  add_attention_flags(flags, model);
  add_latent_attention_flags(flags, model);
  add_expert_flags(flags, model);
  add_recurrent_flags(flags, model);
  add_balance_flags(flags, model);
}

}  // namespace weft
