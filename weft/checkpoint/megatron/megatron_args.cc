#include "weft/checkpoint/megatron/megatron_args.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

namespace weft {
namespace {

Json or_none(std::int64_t value) { return value > 0 ? Json(value) : Json(nullptr); }

// Megatron's are integers where the parser asks for one.
Json whole_or_real(double value) {
  return value == std::floor(value) && std::abs(value) < 1e15 ? Json(static_cast<std::int64_t>(value)) : Json(value);
}

class ModelArgs {
 public:
  ModelArgs(const ModelConfig& config, bool transformer)
      : config_(config), pattern_(parse_pattern(config.pattern)), transformer_(transformer) {}

  Json make() {
    add_layers();
    add_vocabulary();
    add_attention();
    if (has(Symbol::latent_attention) || has(Symbol::sparse_attention)) add_latent_attention();
    add_activation();
    if (has(Symbol::experts)) add_experts();
    if (has(Symbol::mamba)) add_mamba();
    if (has(Symbol::gated_delta)) add_delta_net();
    return std::move(args_);
  }

 private:
  bool has(Symbol symbol) const {
    const auto at = pattern_.counts.find(symbol);
    return at != pattern_.counts.end() && at->second > 0;
  }
  Json& arg(const char* name) { return args_[name]; }

  // 1 for every block of the main part that has experts, 0 for one with an MLP.
  std::vector<int> expert_blocks() const {
    std::vector<int> blocks;
    for (const Segment& segment : pattern_.segments)
      for (const PatternLayer& layer : segment.layers)
        for (const Symbol symbol : layer.symbols)
          if (symbol == Symbol::experts || symbol == Symbol::mlp) blocks.push_back(symbol == Symbol::experts ? 1 : 0);
    return blocks;
  }

  // Of a transformer.
  std::vector<Symbol> mixers() const {
    std::vector<Symbol> mixers;
    for (const Segment& segment : pattern_.segments)
      for (const PatternLayer& layer : segment.layers)
        for (const Symbol symbol : layer.symbols)
          if (symbol != Symbol::experts && symbol != Symbol::mlp) mixers.push_back(symbol);
    return mixers;
  }

  void add_layers() {
    arg("num_layers") = pattern_.physical_layers;
    arg("hybrid_layer_pattern") = config_.pattern;
    arg("is_hybrid_model") = true;
    arg("moe_layer_freq") = 1;
    if (transformer_) {
      const std::vector<int> blocks = expert_blocks();
      arg("num_layers") = blocks.size();
      arg("hybrid_layer_pattern") = nullptr;
      arg("is_hybrid_model") = false;
      if (std::find(blocks.begin(), blocks.end(), 0) != blocks.end() && has(Symbol::experts))
        arg("moe_layer_freq") = blocks;
    }
    arg("mtp_num_layers") = or_none(pattern_.mtp_depths);
    arg("mtp_loss_scaling_factor") = config_.mtp_loss_factor;
    arg("hidden_size") = config_.hidden;
    arg("init_method_std") = config_.init_std;
    arg("norm_epsilon") = config_.norm_epsilon;
    arg("normalization") = "RMSNorm";
    arg("apply_layernorm_1p") = config_.zero_centred_norms;
    arg("untie_embeddings_and_output_weights") = !config_.tied_embeddings;
    arg("attention_dropout") = 0.0;
    arg("hidden_dropout") = 0.0;
    arg("max_position_embeddings") = or_none(config_.max_positions);
  }

  void add_vocabulary() {
    const std::int64_t ids = config_.vocabulary, rows = config_.embedding_rows();
    // The NullTokenizer has one id more, the end of a document.
    arg("tokenizer_type") = "NullTokenizer";
    arg("vocab_size") = ids - 1;
    arg("padded_vocab_size") = rows;
    std::int64_t multiple = 128;
    while (multiple > 1 && (ids + multiple - 1) / multiple * multiple != rows) multiple /= 2;
    arg("make_vocab_size_divisible_by") = multiple == 1 && rows != ids ? rows : multiple;
  }

  void add_attention() {
    const AttentionSpec& spec = config_.attention;
    const bool plain = has(Symbol::attention);
    arg("num_attention_heads") = plain ? spec.heads : std::max<std::int64_t>(config_.latent_attention.heads, 1);
    arg("group_query_attention") = plain && spec.kv_heads != spec.heads;
    arg("num_query_groups") = plain ? spec.kv_heads : arg("num_attention_heads").get<std::int64_t>();
    arg("kv_channels") = or_none(plain ? spec.head_dim : 0);
    arg("qk_layernorm") = !plain || spec.qk_norm;  // latents are always normalised
    arg("add_qkv_bias") = spec.qkv_bias;
    arg("add_bias_linear") = (plain && spec.output_bias) || (has(Symbol::mlp) && config_.mlp.bias) ||
                             (has(Symbol::experts) && config_.experts.bias);
    add_rope(plain ? spec.rope : config_.latent_attention.rope);
    if (!plain) return;
    arg("attention_output_gate") = spec.output_gate;
    arg("softmax_type") = spec.sinks ? "learnable" : "vanilla";
    arg("window_size") = nullptr;
    std::int64_t window = spec.window;
    for (const auto& [layer, other] : config_.attention_at) window = std::max(window, other.window);
    if (window > 0) arg("window_size") = {window - 1, 0};
    if (window == 0 || config_.attention_at.empty()) return;
    // 1: the layer has the window.
    std::vector<int> layers;
    for (int physical = 0; physical < pattern_.physical_layers; ++physical)
      layers.push_back(config_.attention_of(physical).window > 0 ? 1 : 0);
    if (!transformer_) {
      arg("window_attn_skip_freq") = layers;
    } else {
      arg("window_attn_skip_freq") = Json::array();
      for (std::size_t i = 0; i < layers.size(); i += 2) arg("window_attn_skip_freq").push_back(layers[i]);
    }
  }

  void add_rope(const RopeSpec& rope) {
    const bool yarn = rope.scaling == RopeSpec::Scaling::yarn;
    arg("position_embedding_type") = !rope.enabled ? "none" : yarn && has(Symbol::attention) ? "yarn" : "rope";
    arg("rotary_base") = whole_or_real(rope.base);
    arg("rotary_percent") = rope.fraction;
    arg("rotary_interleaved") = has(Symbol::attention) && rope.style == RotaryStyle::interleaved;
    arg("use_rope_scaling") = rope.scaling == RopeSpec::Scaling::llama3;
    if (rope.scaling == RopeSpec::Scaling::llama3) arg("rope_scaling_factor") = rope.factor;
    if (!yarn) {
      if (!has(Symbol::attention)) arg("rope_type") = "rope";
      return;
    }
    arg("rotary_scaling_factor") = rope.factor;
    arg("original_max_position_embeddings") = whole_or_real(rope.original_positions);
    arg("beta_fast") = rope.beta_fast;
    arg("beta_slow") = rope.beta_slow;
    // m(s) = 0.1 s ln(factor) + 1. Latent attention's scale has m(mscale_all_dim) squared; cosine and sine have
    // m(mscale) / m(mscale_all_dim).
    const LatentAttentionSpec& latent = config_.latent_attention;
    const double log = 0.1 * std::log(rope.factor);
    const double plain = 1 / std::sqrt(static_cast<double>(latent.head_dim + latent.rotary_dim));
    const bool scaled = !has(Symbol::attention) && latent.scale > 0;
    const double all = scaled ? std::sqrt(latent.scale / plain) : 1;
    arg("mscale_all_dim") = log > 0 ? rounded((all - 1) / log) : 0.0;
    arg("mscale") = log > 0 ? rounded((rope.magnitude * all - 1) / log) : 1.0;
  }

  // Rounded to twelve digits: roots and logarithms leave noise in the later ones.
  static double rounded(double value) { return std::round(value * 1e12) / 1e12; }

  void add_latent_attention() {
    const LatentAttentionSpec& spec = config_.latent_attention;
    arg("multi_latent_attention") = true;
    arg("q_lora_rank") = or_none(spec.q_rank);
    arg("kv_lora_rank") = spec.kv_rank;
    arg("qk_head_dim") = spec.head_dim;
    arg("qk_pos_emb_head_dim") = spec.rotary_dim;
    arg("v_head_dim") = spec.value_dim;
    if (!has(Symbol::sparse_attention)) return;
    arg("experimental_attention_variant") = "dsa";
    arg("dsa_indexer_n_heads") = spec.indexer.heads;
    arg("dsa_indexer_head_dim") = spec.indexer.dim;
    arg("dsa_indexer_topk") = spec.indexer.topk;
    arg("dsa_indexer_loss_coeff") = spec.indexer.loss_factor;
  }

  void add_activation() {
    const ActivationSpec& spec = has(Symbol::experts) ? config_.experts.activation : config_.mlp.activation;
    arg("ffn_hidden_size") = config_.mlp.ffn > 0 ? config_.mlp.ffn : 4 * config_.hidden;
    arg("swiglu") = spec.kind == ActivationKind::swiglu || spec.kind == ActivationKind::clamped_swiglu;
    arg("squared_relu") = spec.kind == ActivationKind::squared_relu;
    arg("quick_geglu") = spec.kind == ActivationKind::quick_geglu;
    // Megatron's fused GELU, which needs biases, is the tanh approximation.
    arg("bias_gelu_fusion") = spec.kind == ActivationKind::gelu;
    if (spec.limit > 0) arg("activation_func_clamp_value") = spec.limit;
    arg("glu_linear_offset") = spec.offset;
  }

  void add_experts() {
    const ExpertsSpec& spec = config_.experts;
    const RouterSpec& router = spec.router;
    arg("num_experts") = spec.experts;
    arg("moe_ffn_hidden_size") = spec.ffn;
    arg("moe_grouped_gemm") = true;
    arg("moe_router_topk") = router.k;
    const bool softmax = router.score == RouterSpec::Score::softmax;
    arg("moe_router_score_function") = softmax ? "softmax" : "sigmoid";
    // A softmax over all that is divided by the sum of the chosen is the softmax over the chosen.
    arg("moe_router_pre_softmax") = softmax && !router.choose_first && !router.normalise;
    arg("moe_router_topk_scaling_factor") = router.scaling == 1 ? Json(nullptr) : Json(router.scaling);
    arg("moe_router_num_groups") = or_none(router.groups > 1 ? router.groups : 0);
    arg("moe_router_group_topk") = or_none(router.groups > 1 ? router.keep_groups : 0);
    arg("moe_router_enable_expert_bias") = spec.expert_bias;
    arg("moe_shared_expert_intermediate_size") = or_none(spec.shared_ffn);
    arg("moe_shared_expert_gate") = spec.shared_gate;
    arg("moe_latent_size") = or_none(spec.latent);
    add_balance();
  }

  void add_balance() {
    const BalanceSpec& balance = config_.experts.balance;
    Json kinds = Json::array(), factors = Json::array();
    const auto loss = [&](const char* kind, double factor) {
      if (factor == 0) return;
      kinds.push_back(kind);
      factors.push_back(factor);
    };
    loss("aux_loss", balance.aux_loss);
    loss("seq_aux_loss", balance.sequence_aux_loss);
    loss("global_aux_loss", balance.global_aux_loss);
    // One is written without a list.
    arg("moe_router_load_balancing_type") = kinds.empty() ? Json("none") : kinds.size() == 1 ? kinds[0] : kinds;
    arg("moe_aux_loss_coeff") = factors.empty() ? Json(0.0) : factors.size() == 1 ? factors[0] : factors;
    arg("moe_z_loss_coeff") = balance.z_loss > 0 ? Json(balance.z_loss) : Json(nullptr);
    if (config_.experts.expert_bias) arg("moe_router_bias_update_rate") = balance.bias_update_rate;
    arg("moe_expert_capacity_factor") = balance.capacity_factor > 0 ? Json(balance.capacity_factor) : Json(nullptr);
    arg("moe_token_drop_policy") = balance.drop_policy == DropChoices::Policy::position ? "position" : "probs";
    arg("moe_pad_expert_input_to_capacity") = balance.pad_to_capacity;
  }

  void add_mamba() {
    const MambaSpec& spec = config_.mamba;
    arg("mamba_state_dim") = spec.state;
    arg("mamba_head_dim") = spec.head_dim;
    arg("mamba_num_groups") = spec.groups;
    arg("mamba_num_heads") = spec.heads;
    arg("mamba_conv_kernel_dim") = spec.taps;
  }

  void add_delta_net() {
    const DeltaNetSpec& spec = config_.delta_net;
    if (!has(Symbol::sparse_attention)) arg("experimental_attention_variant") = "gated_delta_net";
    if (transformer_) {
      arg("linear_attention_freq") = Json::array();
      for (const Symbol mixer : mixers()) arg("linear_attention_freq").push_back(mixer == Symbol::gated_delta ? 1 : 0);
    }
    arg("linear_num_value_heads") = spec.heads;
    arg("linear_num_key_heads") = spec.key_heads;
    arg("linear_value_head_dim") = spec.head_dim;
    arg("linear_key_head_dim") = spec.key_dim;
    arg("linear_conv_kernel_dim") = spec.taps;
  }

  const ModelConfig& config_;
  Pattern pattern_;
  bool transformer_;
  Json args_ = Json::object();
};

}  // namespace

Json megatron_model_args(const ModelConfig& config, bool transformer) { return ModelArgs(config, transformer).make(); }

}  // namespace weft
