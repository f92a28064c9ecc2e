// What resolved options mean to the parts below: the model, its precision, how it is split.
#include "weft/base/error.h"
#include "weft/data/tokenizer.h"
#include "weft/train/options.h"

namespace weft {
namespace {

RopeSpec rope_of(const ModelOptions& model) {
  RopeSpec rope;
  rope.enabled = model.rope;
  rope.base = model.rotary_base;
  rope.fraction = model.rotary_percent;
  rope.style = model.rotary_interleaved ? RotaryStyle::interleaved : RotaryStyle::half_split;
  if (model.use_rope_scaling) {
    rope.scaling = RopeSpec::Scaling::llama3;
    rope.factor = model.rope_scaling_factor;
    rope.original_positions = 8192;
  }
  return rope;
}

RouterSpec router_of(const ModelOptions& model) {
  RouterSpec router;
  router.score = model.moe_router_score_function;
  router.choose_first = router.score == RouterSpec::Score::softmax && !model.moe_router_pre_softmax;
  // The softmax over the chosen sums to one already.
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
  config.vocabulary = make_tokenizer(options.data.tokenizer_type, options.data.vocab_size)->vocabulary_size();
  const std::int64_t multiple = options.data.make_vocab_size_divisible_by;
  config.padded_vocabulary = (config.vocabulary + multiple - 1) / multiple * multiple;
  config.norm_epsilon = model.norm_epsilon;
  config.zero_centred_norms = model.apply_layernorm_1p;
  config.tied_embeddings = model.tie_embeddings;
  config.init_std = model.init_method_std;
  config.max_positions = model.max_position_embeddings;

  config.attention.heads = model.num_attention_heads;
  config.attention.kv_heads = model.num_query_groups;
  config.attention.head_dim = model.kv_channels;
  config.attention.qkv_bias = model.add_qkv_bias || model.add_bias_linear;
  config.attention.output_bias = model.add_bias_linear;
  config.attention.qk_norm = model.qk_layernorm;
  config.attention.window = model.window_size;
  config.attention.rope = rope_of(model);

  config.mlp.ffn = model.ffn_hidden_size;
  config.mlp.activation.kind = model.activation;
  config.mlp.bias = model.add_bias_linear;

  config.experts.experts = model.num_experts;
  config.experts.ffn = model.moe_ffn_hidden_size;
  config.experts.router = router_of(model);
  config.experts.activation.kind = model.activation;
  config.experts.shared_ffn = model.moe_shared_expert_intermediate_size;
  return config;
}

Precision precision_of(const TrainOptions& options) { return {.compute = options.dtype}; }

SplitOptions split_options(const TrainOptions& options) {
  const LayoutOptions& layout = options.layout;
  SplitOptions split;
  split.pp = static_cast<int>(layout.pipeline_model_parallel_size);
  if (layout.decoder_first_pipeline_num_layers > 0)
    split.first_stage_layers = static_cast<int>(layout.decoder_first_pipeline_num_layers);
  if (layout.decoder_last_pipeline_num_layers > 0)
    split.last_stage_layers = static_cast<int>(layout.decoder_last_pipeline_num_layers);
  return split;
}

std::int64_t micro_batches(const TrainOptions& options) {
  return options.batch.global_batch_size / (options.batch.micro_batch_size * options.layout.data_parallel_size());
}

}  // namespace weft
