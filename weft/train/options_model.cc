// From resolved options to the structs of the parts below: the model, its precision, how it is split.
#include <cmath>

#include "weft/base/error.h"
#include "weft/data/tokenizer_choice.h"
#include "weft/train/options.h"
#include "weft/train/stage_layout.h"

namespace weft {
namespace {

double yarn_magnitude(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }

void set_yarn(const ModelOptions& model, RopeSpec& rope) {
  rope.scaling = RopeSpec::Scaling::yarn;
  rope.factor = model.rotary_scaling_factor;
  rope.original_positions = static_cast<double>(model.original_max_position_embeddings);
  rope.beta_fast = model.beta_fast;
  rope.beta_slow = model.beta_slow;
  rope.magnitude = yarn_magnitude(rope.factor, model.mscale) / yarn_magnitude(rope.factor, model.mscale_all_dim);
}

ActivationSpec activation_of(const ModelOptions& model) {
  ActivationSpec spec{model.activation, model.activation_func_clamp_value};
  if (spec.kind == ActivationKind::swiglu && spec.limit > 0) spec.kind = ActivationKind::clamped_swiglu;
  if (spec.kind == ActivationKind::quick_geglu) spec.offset = model.glu_linear_offset;
  return spec;
}

RopeSpec rope_of(const ModelOptions& model) {
  RopeSpec rope;
  rope.enabled = model.positions != PositionKind::none;
  rope.base = model.rotary_base;
  rope.fraction = model.rotary_percent;
  rope.style = model.rotary_interleaved ? RotaryStyle::interleaved : RotaryStyle::half_split;
  if (model.use_rope_scaling) {
    rope.scaling = RopeSpec::Scaling::llama3;
    rope.factor = model.rope_scaling_factor;
    rope.original_positions = 8192;
  }
  if (model.positions == PositionKind::yarn) set_yarn(model, rope);
  return rope;
}

// Multi-latent attention rotates neighbours as pairs, and uses YaRN wherever there is a factor.
LatentAttentionSpec latent_attention_of(const ModelOptions& model) {
  LatentAttentionSpec spec;
  spec.heads = model.num_attention_heads;
  spec.q_rank = model.q_lora_rank;
  spec.kv_rank = model.kv_lora_rank;
  spec.head_dim = model.qk_head_dim;
  spec.rotary_dim = model.qk_pos_emb_head_dim;
  spec.value_dim = model.v_head_dim;
  spec.rope.base = model.rotary_base;
  spec.indexer = {model.dsa_indexer_n_heads, model.dsa_indexer_head_dim, model.dsa_indexer_topk,
                  model.dsa_indexer_loss_coeff};
  if (model.rotary_scaling_factor != 1) {
    set_yarn(model, spec.rope);
    const double mscale = yarn_magnitude(model.rotary_scaling_factor, model.mscale_all_dim);
    spec.scale = mscale * mscale / std::sqrt(static_cast<double>(spec.head_dim + spec.rotary_dim));
  }
  return spec;
}

RouterSpec router_of(const ModelOptions& model) {
  RouterSpec router;
  router.score = model.moe_router_score_function;
  router.choose_first = router.score == RouterSpec::Score::softmax && !model.moe_router_pre_softmax;
  // The softmax over the chosen experts already sums to one.
  router.normalise = !router.choose_first && model.moe_router_norm_topk.value_or(false);
  router.scaling = model.moe_router_topk_scaling_factor;
  router.k = model.moe_router_topk;
  if (model.moe_router_num_groups > 0) {
    router.groups = model.moe_router_num_groups;
    router.keep_groups = model.moe_router_group_topk;
    router.group_best = model.moe_router_topk / model.moe_router_group_topk;  // Megatron's rule
  }
  return router;
}

}  // namespace

ModelConfig model_config(const TrainOptions& options) {
  const ModelOptions& model = options.model;
  WEFT_CHECK(model.hf.empty(), "the model is that of {}", model.hf);
  ModelConfig config;
  config.pattern = model.pattern;
  config.hidden = model.hidden_size;
  config.vocabulary = tokenizer_of(options.data.tokenizer)->vocabulary_size();
  const std::int64_t multiple = options.data.make_vocab_size_divisible_by;
  config.padded_vocabulary = (config.vocabulary + multiple - 1) / multiple * multiple;
  config.norm_epsilon = model.norm_epsilon;
  config.zero_centred_norms = model.apply_layernorm_1p;
  config.tied_embeddings = model.tie_embeddings;
  config.init_std = model.init_method_std;
  config.mtp_loss_factor = model.mtp_loss_scaling_factor;
  config.max_positions = model.max_position_embeddings;

  config.attention.heads = model.num_attention_heads;
  config.attention.kv_heads = model.num_query_groups;
  config.attention.head_dim = model.kv_channels;
  config.attention.qkv_bias = model.add_qkv_bias || model.add_bias_linear;
  config.attention.output_bias = model.add_bias_linear;
  config.attention.qk_norm = model.qk_layernorm;
  config.attention.sinks = model.softmax_sinks;
  config.attention.window = model.window_size;
  config.attention.rope = rope_of(model);

  config.attention.output_gate = model.attention_output_gate;
  config.latent_attention = latent_attention_of(model);

  config.mamba.heads = model.mamba_num_heads;
  config.mamba.head_dim = model.mamba_head_dim;
  config.mamba.groups = model.mamba_num_groups;
  config.mamba.state = model.mamba_state_dim;
  config.mamba.taps = model.mamba_conv_kernel_dim;
  config.mamba.chunk = model.mamba_chunk_size;

  config.delta_net.heads = model.linear_num_value_heads;
  config.delta_net.key_heads = model.linear_num_key_heads;
  config.delta_net.head_dim = model.linear_value_head_dim;
  config.delta_net.key_dim = model.linear_key_head_dim;
  config.delta_net.taps = model.linear_conv_kernel_dim;

  config.mlp.ffn = model.ffn_hidden_size;
  config.mlp.activation = activation_of(model);
  config.mlp.bias = model.add_bias_linear;

  config.experts.experts = model.num_experts;
  config.experts.ffn = model.moe_ffn_hidden_size;
  config.experts.router = router_of(model);
  config.experts.activation = activation_of(model);
  config.experts.bias = config.experts.router_bias = model.add_bias_linear;
  config.experts.shared_ffn = model.moe_shared_expert_intermediate_size;
  config.experts.expert_bias = model.moe_router_enable_expert_bias;
  config.experts.balance = balance_spec(model);
  config.experts.latent = model.moe_latent_size;
  config.experts.shared_gate = model.moe_shared_expert_gate;
  return config;
}

Precision precision_of(const TrainOptions& options) {
  const ShardingOptions& sharding = options.sharding;
  const bool kept = options.grad_reduce_in_bf16 || sharding.main_grads_dtype == GradientType::bf16,
             narrow = kept || sharding.grad_comm_dtype == GradientType::bf16;
  return {.compute = options.dtype,
          .bf16_gradients = narrow,
          .float_gradient_parts = narrow && (!kept || sharding.main_grads_dtype == GradientType::fp32)};
}

SplitOptions split_options(const TrainOptions& options, const std::string& pattern) {
  const LayoutOptions& layout = options.layout;
  SplitOptions split;
  split.pp = static_cast<int>(layout.pipeline_model_parallel_size);
  if (split.pp == 1) return split;  // the first stage is then also the last
  split.count_symbols = options.model.hf.empty() && options.model.num_layers == 0;
  if (layout.decoder_first_pipeline_num_layers > 0)
    split.first_stage_layers = static_cast<int>(layout.decoder_first_pipeline_num_layers);
  if (layout.decoder_last_pipeline_num_layers > 0)
    split.last_stage_layers = static_cast<int>(layout.decoder_last_pipeline_num_layers);
  if (layout.num_virtual_stages_per_pipeline_rank > 0)
    split.virtual_stages = static_cast<int>(layout.num_virtual_stages_per_pipeline_rank);
  const std::int64_t each = layout.num_layers_per_virtual_pipeline_stage;
  if (each > 0) {
    const Pattern whole = parse_pattern(pattern);
    const std::int64_t layers = split.count_symbols ? whole.physical_layers : whole.logical_layers;
    if (layers % (each * split.pp) != 0 || layers == 0)
      throw UserError(
          "--num-layers-per-virtual-pipeline-stage {}: times --pipeline-model-parallel-size {} must divide the {} {} "
          "of "
          "the main part",
          each, split.pp, layers, split.count_symbols ? "symbols" : "layers");
    split.virtual_stages = static_cast<int>(layers / (each * split.pp));
  }
  if (!layout.pipeline_model_parallel_layout.empty())
    split.segment_layers =
        layers_of_stages(layout.pipeline_model_parallel_layout, parse_pattern(pattern).mtp_depths > 0);
  return split;
}

std::int64_t micro_batches(const TrainOptions& options) {
  return options.batch.global_batch_size / (options.batch.micro_batch_size * options.layout.data_parallel_size());
}

}  // namespace weft
