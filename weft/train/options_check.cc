// Rules between options. All broken rules are reported at once, each with the flag, the value, the rule and the fix.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/data/megatron_order.h"
#include "weft/train/options.h"
#include "weft/train/tokenizer_flags.h"

namespace weft {
namespace {

class Problems {
 public:
  // add("--flag", value, "rule; fix {}", values...)
  template <class V, class... Args>
  void add(const char* flag, const V& value, fmt::format_string<Args...> text, Args&&... args) {
    list.push_back(fmt::format("{} {}: {}", flag, value, fmt::format(text, std::forward<Args>(args)...)));
  }
  // For a switch.
  void add_switch(const char* flag, const char* text) { list.push_back(fmt::format("{}: {}", flag, text)); }
  void at_least_one(const char* flag, std::int64_t value) {
    if (value < 1) add(flag, value, "must be at least 1");
  }
  // For rules that are checked elsewhere: their message, as an item of the list.
  void add_message(std::string message) { list.push_back(std::move(message)); }

  std::vector<std::string> list;
};

// "12 or 16": the multiples of `step` next to a value.
std::string multiples_near(std::int64_t value, std::int64_t step) {
  const std::int64_t below = value / step * step;
  return below == 0 ? fmt::format("{}", step) : fmt::format("{} or {}", below, below + step);
}

void check_attention(Problems& problems, const ModelOptions& model) {
  const std::int64_t heads = model.num_attention_heads;
  problems.at_least_one("--num-attention-heads", heads);
  if (heads < 1) return;
  if (model.kv_channels < 1) {
    problems.add("--num-attention-heads", heads,
                 "must divide --hidden-size {}; use --hidden-size {}, or set --kv-channels", model.hidden_size,
                 multiples_near(model.hidden_size, heads));
  } else if (model.positions != PositionKind::none) {
    const double width = static_cast<double>(model.kv_channels) * model.rotary_percent;
    if (std::fmod(width, 2) != 0 || width < 2)
      problems.add("--rotary-percent", model.rotary_percent,
                   "{} of the {} elements of a head would rotate, which must be an even number", width,
                   model.kv_channels);
  }
  if (model.attention_output_gate && (model.add_qkv_bias || model.add_bias_linear))
    problems.add_switch("--attention-output-gate", "gated attention has no biases; drop them or the gate");
  if (model.num_query_groups < 1 || heads % model.num_query_groups != 0)
    problems.add("--num-query-groups", model.num_query_groups,
                 "must divide --num-attention-heads {}; use a divisor of it", heads);
}

void check_latent_attention(Problems& problems, const ModelOptions& model) {
  problems.at_least_one("--num-attention-heads", model.num_attention_heads);
  if (model.qk_pos_emb_head_dim % 2 != 0)
    problems.add("--qk-pos-emb-head-dim", model.qk_pos_emb_head_dim, "elements rotate in pairs; use an even number");
  if (model.positions == PositionKind::none)
    problems.add("--position-embedding-type", "none",
                 "multi-latent attention (+) always has a rotary part; drop the flag");
  if (model.rotary_percent != 1)
    problems.add("--rotary-percent", model.rotary_percent,
                 "in multi-latent attention (+) --qk-pos-emb-head-dim decides how many elements rotate; drop the flag");
  if (model.use_rope_scaling)
    problems.add_switch("--use-rope-scaling",
                        "multi-latent attention (+) scales with YaRN; use --rotary-scaling-factor");
}

void check_indexer(Problems& problems, const ModelOptions& model) {
  if (model.q_lora_rank < 1)
    problems.add_message(
        "--q-lora-rank: the indexer of sparse attention (D) reads the queries' latent; give it a width");
  if (model.dsa_indexer_head_dim < model.qk_pos_emb_head_dim)
    problems.add("--dsa-indexer-head-dim", model.dsa_indexer_head_dim,
                 "must be at least --qk-pos-emb-head-dim {}; raise it", model.qk_pos_emb_head_dim);
}

void check_rope_scaling(Problems& problems, const ModelOptions& model) {
  if (model.positions == PositionKind::yarn && model.use_rope_scaling)
    problems.add_switch("--use-rope-scaling", "YaRN already scales the positions; drop one of the two");
}

void check_router_groups(Problems& problems, const ModelOptions& model) {
  const std::int64_t groups = model.moe_router_num_groups, kept = model.moe_router_group_topk;
  if (groups == 0 && kept == 0) return;
  if (groups == 0 || kept == 0) {
    problems.add(groups == 0 ? "--moe-router-group-topk" : "--moe-router-num-groups", groups == 0 ? kept : groups,
                 "also needs {}", groups == 0 ? "--moe-router-num-groups" : "--moe-router-group-topk");
    return;
  }
  if (model.num_experts % groups != 0)
    problems.add("--moe-router-num-groups", groups, "must divide --num-experts {}", model.num_experts);
  else if (model.moe_router_topk > kept * (model.num_experts / groups))
    problems.add("--moe-router-topk", model.moe_router_topk,
                 "the {} kept groups hold only {} experts; keep more groups", kept,
                 kept * (model.num_experts / groups));
  if (kept > groups)
    problems.add("--moe-router-group-topk", kept, "must not exceed --moe-router-num-groups {}", groups);
  if (model.moe_router_topk % kept != 0)
    problems.add("--moe-router-group-topk", kept, "must divide --moe-router-topk {}", model.moe_router_topk);
}

void check_balance_losses(Problems& problems, const ModelOptions& model) {
  BalanceSpec balance;
  if (const std::optional<std::string> wrong = balance_losses(model, balance)) problems.add_message(*wrong);
}

void check_balance(Problems& problems, const ModelOptions& model) {
  check_balance_losses(problems, model);
  if (model.moe_router_enable_expert_bias && model.moe_router_score_function != RouterSpec::Score::sigmoid)
    problems.add_switch("--moe-router-enable-expert-bias",
                        "the bias corrects sigmoid scores; add --moe-router-score-function sigmoid");
}

void check_experts(Problems& problems, const ModelOptions& model) {
  problems.at_least_one("--num-experts", model.num_experts);
  problems.at_least_one("--moe-ffn-hidden-size", model.moe_ffn_hidden_size);
  problems.at_least_one("--moe-router-topk", model.moe_router_topk);
  if (model.moe_router_topk > model.num_experts)
    problems.add("--moe-router-topk", model.moe_router_topk,
                 "must not exceed --num-experts {}; lower it, or use more experts", model.num_experts);
  const bool after = model.moe_router_score_function == RouterSpec::Score::softmax && !model.moe_router_pre_softmax;
  if (after && model.moe_router_topk == 1)
    problems.add("--moe-router-topk", 1,
                 "the softmax over one chosen expert is always 1, so the router would not learn; add "
                 "--moe-router-pre-softmax");
  if (after && model.moe_router_norm_topk == false)
    problems.add_switch(
        "--no-moe-router-norm-topk",
        "the softmax over the chosen experts always sums to one; add --moe-router-pre-softmax, or drop the flag");
  if (model.moe_router_score_function == RouterSpec::Score::sigmoid && model.moe_router_pre_softmax)
    problems.add_switch("--moe-router-pre-softmax", "sigmoid scores have no softmax; drop one of the two");
  check_router_groups(problems, model);
  check_balance(problems, model);
  if (model.add_bias_linear && model.moe_shared_expert_intermediate_size > 0)
    problems.add_switch("--add-bias-linear", "a shared expert has no biases; use --add-qkv-bias, or drop the flag");
}

void check_mamba(Problems& problems, const ModelOptions& model) {
  if (model.mamba_num_heads < 1)
    problems.add("--mamba-head-dim", model.mamba_head_dim,
                 "is more than twice --hidden-size {}; lower it, or set --mamba-num-heads", model.hidden_size);
  else if (model.mamba_num_groups < 1 || model.mamba_num_heads % model.mamba_num_groups != 0)
    problems.add("--mamba-num-groups", model.mamba_num_groups, "must divide --mamba-num-heads {}; use a divisor of it",
                 model.mamba_num_heads);
}

void check_delta_net(Problems& problems, const ModelOptions& model) {
  if (model.linear_num_key_heads < 1 || model.linear_num_value_heads % model.linear_num_key_heads != 0)
    problems.add("--linear-num-key-heads", model.linear_num_key_heads,
                 "must divide --linear-num-value-heads {}; use a divisor of it", model.linear_num_value_heads);
}

void check_model(Problems& problems, const TrainOptions& options) {
  const ModelOptions& model = options.model;
  problems.at_least_one("--hidden-size", model.hidden_size);
  check_rope_scaling(problems, model);
  try {
    const Pattern pattern = parse_pattern(model.pattern, split_options(options, model.pattern));
    const std::int64_t layers = model.num_layers;
    if (layers > 0 && layers != pattern.logical_layers && layers != pattern.physical_layers)
      problems.add("--num-layers", layers, "the pattern '{}' has {} symbols in {} layers; drop --num-layers",
                   pattern.text, pattern.physical_layers, pattern.logical_layers);
    if (pattern.counts.at(Symbol::attention) > 0) check_attention(problems, model);
    const int sparse = pattern.counts.at(Symbol::sparse_attention);
    if (pattern.counts.at(Symbol::latent_attention) + sparse > 0) check_latent_attention(problems, model);
    if (sparse > 0) check_indexer(problems, model);
    if (pattern.counts.at(Symbol::mamba) > 0) check_mamba(problems, model);
    if (pattern.counts.at(Symbol::gated_delta) > 0) check_delta_net(problems, model);
    if (pattern.counts.at(Symbol::mlp) > 0) problems.at_least_one("--ffn-hidden-size", model.ffn_hidden_size);
    if (pattern.counts.at(Symbol::experts) > 0) check_experts(problems, model);
  } catch (const UserError& error) {
    problems.add_message(fmt::format("--pattern: {}", error.what()));
  }
  if (model.max_position_embeddings > 0 && model.max_position_embeddings < options.batch.seq_length)
    problems.add("--max-position-embeddings", model.max_position_embeddings, "is below --seq-length {}; raise it",
                 options.batch.seq_length);
}

// Whether all sizes are at least 1; the other rules divide by them.
bool check_layout_sizes(Problems& problems, const LayoutOptions& layout) {
  problems.at_least_one("--ranks", layout.ranks);
  problems.at_least_one("--tensor-model-parallel-size", layout.tensor_model_parallel_size);
  problems.at_least_one("--context-parallel-size", layout.context_parallel_size);
  problems.at_least_one("--pipeline-model-parallel-size", layout.pipeline_model_parallel_size);
  problems.at_least_one("--expert-model-parallel-size", layout.expert_model_parallel_size);
  problems.at_least_one("--expert-tensor-parallel-size", layout.expert_tensor_parallel_size);
  return problems.list.empty();
}

// Whether the number of data-parallel ranks is known.
bool check_layout(Problems& problems, const LayoutOptions& layout) {
  if (layout.launched_ranks > 1 && layout.ranks != layout.launched_ranks)
    problems.add("--ranks", layout.ranks, "the launcher started {} processes; drop --ranks", layout.launched_ranks);
  const std::int64_t stages = layout.pipeline_model_parallel_size, of_stage = layout.ranks / stages;
  const char* const where = stages > 1 ? " of a stage" : "";
  if (layout.ranks % stages != 0) {
    problems.add("--pipeline-model-parallel-size", stages, "must divide the {} ranks", layout.ranks);
    return false;
  }
  if (of_stage % layout.tensor_model_parallel_size != 0) {
    problems.add("--tensor-model-parallel-size", layout.tensor_model_parallel_size, "must divide the {} ranks{}",
                 of_stage, where);
    return false;
  }
  if (of_stage % (layout.tensor_model_parallel_size * layout.context_parallel_size) != 0) {
    problems.add("--context-parallel-size", layout.context_parallel_size,
                 "times --tensor-model-parallel-size {} must divide the {} ranks{}", layout.tensor_model_parallel_size,
                 of_stage, where);
    return false;
  }
  const std::int64_t parts = layout.expert_tensor_parallel_size, experts = layout.expert_model_parallel_size;
  if (parts == 1 && of_stage % experts != 0)
    problems.add("--expert-model-parallel-size", experts, "must divide the {} ranks{}", of_stage, where);
  else if (of_stage % (parts * experts) != 0)
    problems.add("--expert-tensor-parallel-size", parts,
                 "times --expert-model-parallel-size {} must divide the {} ranks{}", experts, of_stage, where);
  return true;
}

void check_batch(Problems& problems, const TrainOptions& options, bool layout_is_good) {
  const BatchOptions& batch = options.batch;
  problems.at_least_one("--seq-length", batch.seq_length);
  problems.at_least_one("--micro-batch-size", batch.micro_batch_size);
  if (batch.micro_batch_size >= 1 && layout_is_good) {
    const std::int64_t data_parallel = options.layout.data_parallel_size();
    const std::int64_t step = batch.micro_batch_size * data_parallel;
    if (batch.global_batch_size < 1 || batch.global_batch_size % step != 0)
      problems.add("--global-batch-size", batch.global_batch_size,
                   "must be a multiple of --micro-batch-size x data-parallel ranks = {} x {} = {}; use {}",
                   batch.micro_batch_size, data_parallel, step, multiples_near(batch.global_batch_size, step));
  }
  const LayoutOptions& layout = options.layout;
  const std::int64_t parts =
      2 * layout.context_parallel_size * (layout.sequence_parallel ? layout.tensor_model_parallel_size : 1);
  if (layout_is_good && layout.context_parallel_size > 1 && batch.seq_length >= 1 && batch.seq_length % parts != 0)
    problems.add("--seq-length", batch.seq_length,
                 "must be a multiple of 2 x --context-parallel-size {}{} = {}, the parts of a sequence; use {}",
                 layout.context_parallel_size,
                 layout.sequence_parallel
                     ? fmt::format(" x --tensor-model-parallel-size {}", layout.tensor_model_parallel_size)
                     : "",
                 parts, multiples_near(batch.seq_length, parts));
  if (batch.train_samples == 0) problems.at_least_one("--train-iters", batch.train_iters);
  if (batch.train_samples > 0 && batch.global_batch_size > 0 &&
      batch.train_iters != batch.train_samples / batch.global_batch_size)
    problems.add("--train-iters", batch.train_iters, "contradicts --train-samples {}; drop one of the two",
                 batch.train_samples);
  if (batch.train_samples > 0 && batch.train_samples < batch.global_batch_size)
    problems.add("--train-samples", batch.train_samples, "is less than one step of --global-batch-size {}",
                 batch.global_batch_size);
}

void check_data(Problems& problems, const DataOptions& data, bool own_model) {
  std::vector<std::string> sources;
  if (!data.data_path.empty()) sources.push_back("--data-path");
  if (!data.train_data_path.empty()) sources.push_back("--train-data-path");
  if (data.mock_data) sources.push_back("--mock-data");
  if (data.stories > 0) sources.push_back("--stories");
  if (!data.text.empty()) sources.push_back("--text");
  if (sources.size() > 1) problems.add_message(join(sources, ", ") + ": more than one source of data; keep one");
  if (!data.valid_data_path.empty() && data.train_data_path.empty())
    problems.add_message(
        "--valid-data-path: needs --train-data-path; --data-path and --split take both from the same files");
  try {
    parse_split(data.split);
  } catch (const UserError& error) {
    problems.add_message(error.what());
  }
  problems.at_least_one("--make-vocab-size-divisible-by", data.make_vocab_size_divisible_by);
  const bool null = data.tokenizer.type == "NullTokenizer";
  if (null && data.stories > 0)
    problems.add("--tokenizer-type", "NullTokenizer", "stories are text; use ByteTokenizer, or drop --vocab-size");
  // The ids of a loaded model are known.
  const std::string problem = !own_model && null ? "" : tokenizer_flags_problem(data.tokenizer);
  if (!problem.empty()) problems.add_message(problem);
}

void check_twice(Problems& problems, const char* iterations, std::int64_t count, const char* samples,
                 std::int64_t sample_count) {
  if (count > 0 && sample_count > 0)
    problems.add(iterations, count, "{} {} sets the same in samples; drop one of the two", samples, sample_count);
}

void check_optimizer(Problems& problems, const TrainOptions& options) {
  const OptimizerOptions& optimizer = options.optimizer;
  if (options.grad_reduce_in_bf16 && options.dtype != DType::bf16)
    problems.add_switch("--grad-reduce-in-bf16", "works only with a bf16 model; add --bf16");
  if (optimizer.min_lr > optimizer.lr)
    problems.add("--min-lr", optimizer.min_lr, "is above --lr {}; lower it", optimizer.lr);
  if (optimizer.lr_warmup_init > optimizer.lr)
    problems.add("--lr-warmup-init", optimizer.lr_warmup_init, "is above --lr {}; lower it", optimizer.lr);
  check_twice(problems, "--lr-decay-iters", optimizer.lr_decay_iters, "--lr-decay-samples", optimizer.lr_decay_samples);
  check_twice(problems, "--lr-warmup-iters", optimizer.lr_warmup_iters, "--lr-warmup-samples",
              optimizer.lr_warmup_samples);
  check_twice(problems, "--lr-wsd-decay-iters", optimizer.lr_wsd_decay_iters, "--lr-wsd-decay-samples",
              optimizer.lr_wsd_decay_samples);
  if (optimizer.lr_warmup_fraction && (optimizer.lr_warmup_iters > 0 || optimizer.lr_warmup_samples > 0))
    problems.add("--lr-warmup-fraction", *optimizer.lr_warmup_fraction,
                 "the length of the warm-up is also set by --lr-warmup-iters or --lr-warmup-samples; keep one");

  const LearningRateSpec spec = learning_rate_spec(options);
  const bool wsd = spec.style == DecayStyle::wsd;
  if (spec.warmup > 0 && spec.warmup >= spec.decay)
    problems.add("--lr-warmup-iters", optimizer.lr_warmup_iters,
                 "the warm-up of {} samples must end before the decay of {} samples; shorten it, or set "
                 "--lr-decay-iters",
                 spec.warmup, spec.decay);
  if (wsd && spec.wsd == 0) problems.add("--lr-decay-style", "WSD", "needs --lr-wsd-decay-iters");
  if (wsd && spec.wsd > 0 && spec.warmup + spec.wsd > spec.decay)
    problems.add("--lr-wsd-decay-iters", optimizer.lr_wsd_decay_iters,
                 "warm-up and last part, {} + {} samples, must fit into the decay of {}; shorten one of them",
                 spec.warmup, spec.wsd, spec.decay);

  const bool constant = optimizer.weight_decay_incr_style == WeightDecayStyle::constant;
  if (!constant && (!optimizer.start_weight_decay || !optimizer.end_weight_decay)) {
    problems.add("--weight-decay-incr-style",
                 optimizer.weight_decay_incr_style == WeightDecayStyle::linear ? "linear" : "cosine",
                 "needs --start-weight-decay and --end-weight-decay");
    return;
  }
  const WeightDecaySpec decay = weight_decay_spec(options);
  if (constant && (decay.start != optimizer.weight_decay || decay.end != optimizer.weight_decay))
    problems.add("--weight-decay-incr-style", "constant",
                 "--start-weight-decay {} and --end-weight-decay {} differ from --weight-decay {}; drop them, or "
                 "use linear or cosine",
                 decay.start, decay.end, optimizer.weight_decay);
  else if (decay.end < decay.start)
    problems.add("--end-weight-decay", decay.end, "is below --start-weight-decay {}; raise it", decay.start);
}

void check_sharding(Problems& problems, const TrainOptions& options) {
  const ShardingOptions& s = options.sharding;
  const ShardingStrategy strategy = strategy_of(options);
  if (s.use_distributed_optimizer && strategy == ShardingStrategy::no_shard && !s.use_megatron_fsdp)
    problems.add("--data-parallel-sharding-strategy", "no_shard",
                 "contradicts --use-distributed-optimizer, which means optim; drop one of the two");
  for (const auto& [flag, type] : {std::pair{"--megatron-fsdp-main-grads-dtype", s.main_grads_dtype},
                                   {"--megatron-fsdp-grad-comm-dtype", s.grad_comm_dtype}})
    if (type == GradientType::bf16 && options.dtype != DType::bf16)
      problems.add(flag, "bf16", "works only with a bf16 model; add --bf16");
  const bool keeps_bf16 = s.main_grads_dtype == GradientType::bf16 ||
                          (s.main_grads_dtype == GradientType::automatic && options.grad_reduce_in_bf16);
  if (keeps_bf16 && s.grad_comm_dtype == GradientType::fp32)
    problems.add("--megatron-fsdp-grad-comm-dtype", "fp32",
                 "gradients that are kept in bf16 do not travel in fp32; drop it, or keep them in fp32");
  if (s.main_grads_dtype == GradientType::fp32 && options.grad_reduce_in_bf16 &&
      s.grad_comm_dtype == GradientType::fp32)
    problems.add("--grad-reduce-in-bf16", "true",
                 "contradicts --megatron-fsdp-grad-comm-dtype fp32; drop one of the two");
  const bool widens = !keeps_bf16 && (s.grad_comm_dtype == GradientType::bf16 || options.grad_reduce_in_bf16);
  if (widens && strategy == ShardingStrategy::optim)
    problems.add(
        "--data-parallel-sharding-strategy", "optim",
        "adds up micro-batches in the type in which gradients travel, so they cannot travel in bf16 and be kept "
        "in fp32; use optim_grads, or one type");
  if (s.outer_strategy == ShardingStrategy::optim && strategy != ShardingStrategy::optim_grads_params)
    problems.add("--outer-dp-sharding-strategy", "optim",
                 "instances of the optimizer can divide the parts that their ranks hold, but with {} every rank holds "
                 "whole weights; use --data-parallel-sharding-strategy optim_grads_params, or drop the flag",
                 name_of(strategy));
}

// What a pattern is cut into, and the order in which micro-batches pass it.
void check_pipeline(Problems& problems, const TrainOptions& options) {
  const LayoutOptions& l = options.layout;
  const std::int64_t stages = l.pipeline_model_parallel_size;
  if (stages == 1 && l.num_virtual_stages_per_pipeline_rank > 1)
    problems.add("--num-virtual-stages-per-pipeline-rank", l.num_virtual_stages_per_pipeline_rank,
                 "one stage has nothing to interleave with; set --pipeline-model-parallel-size");
  std::vector<std::string> ways;
  if (l.num_virtual_stages_per_pipeline_rank > 0) ways.emplace_back("--num-virtual-stages-per-pipeline-rank");
  if (l.num_layers_per_virtual_pipeline_stage > 0) ways.emplace_back("--num-layers-per-virtual-pipeline-stage");
  if (!l.pipeline_model_parallel_layout.empty()) ways.emplace_back("--pipeline-model-parallel-layout");
  if (ways.size() > 1) return problems.add_message(join(ways, ", ") + ": place the layers in different ways; keep one");
  if (!l.pipeline_model_parallel_layout.empty() && options.model.num_layers == 0)
    problems.add("--pipeline-model-parallel-layout", l.pipeline_model_parallel_layout,
                 "places layers of --num-layers; a pattern has pipes for that");
  if (!l.pipeline_model_parallel_layout.empty() &&
      l.decoder_first_pipeline_num_layers + l.decoder_last_pipeline_num_layers > 0)
    problems.add("--pipeline-model-parallel-layout", l.pipeline_model_parallel_layout,
                 "already places the layers; drop it, or the counts of the first and last stage");
  const std::int64_t data = options.layout.data_parallel_size(), step = options.batch.micro_batch_size * data;
  if (stages == 1 || step < 1 || options.batch.global_batch_size % step != 0 || options.model.pattern.empty()) return;
  PipelineStage stage;
  stage.stages = static_cast<int>(stages);
  try {
    stage.chunks = parse_pattern(options.model.pattern, split_options(options, options.model.pattern)).virtual_stages();
  } catch (const UserError&) {
    return;  // the pattern's own problem
  }
  stage.micro_batches = static_cast<int>(std::max<std::int64_t>(1, options.batch.global_batch_size / step));
  stage.kind = options.execution.pipeline_order;
  stage.group = static_cast<int>(l.microbatch_group_size_per_virtual_pipeline_stage);
  stage.woven = options.execution.overlap_moe_expert_parallel_comm;
  if (stage.group > 0 && stage.chunks == 1)
    problems.add("--microbatch-group-size-per-virtual-pipeline-stage", stage.group,
                 "every stage has one segment, and no order groups micro-batches; drop the flag");
  try {
    pipeline_order(stage);
  } catch (const UserError& error) {
    problems.add_message(fmt::format("--pipeline-model-parallel-size {}: {}", stages, error.what()));
  }
}

void check_instances(Problems& problems, const TrainOptions& options) {
  const std::int64_t instances = options.sharding.num_distributed_optimizer_instances,
                     ranks = options.layout.data_parallel_size(),
                     tensor = options.layout.tensor_model_parallel_size * options.layout.context_parallel_size,
                     experts = options.layout.expert_model_parallel_size * options.layout.expert_tensor_parallel_size;
  if (instances == 1 || instances < 1 || ranks < 1 || ranks * tensor % experts != 0) return;
  if (ranks % instances != 0)
    problems.add("--num-distributed-optimizer-instances", instances, "must divide the {} data-parallel ranks", ranks);
  else if (ranks * tensor / instances % experts != 0)
    problems.add("--num-distributed-optimizer-instances", instances,
                 "leaves {} ranks for each, which must be a multiple of --expert-model-parallel-size {}{}; use {} or a "
                 "divisor of it",
                 ranks * tensor / instances, options.layout.expert_model_parallel_size,
                 options.layout.expert_tensor_parallel_size > 1
                     ? fmt::format(" x --expert-tensor-parallel-size {}", options.layout.expert_tensor_parallel_size)
                     : "",
                 ranks * tensor / experts);
}

}  // namespace

std::vector<std::string> find_problems(const TrainOptions& options) {
  Problems problems;
  const bool own_model = options.model.hf.empty();
  const bool sizes = check_layout_sizes(problems, options.layout);
  const bool layout_is_good = sizes && check_layout(problems, options.layout);
  if (own_model && layout_is_good) check_model(problems, options);
  if (!own_model) check_balance_losses(problems, options.model);
  check_batch(problems, options, layout_is_good);
  check_data(problems, options.data, own_model);
  check_optimizer(problems, options);
  check_sharding(problems, options);
  if (layout_is_good) check_instances(problems, options);
  if (layout_is_good)
    for (std::string& problem : find_context_problems(options)) problems.add_message(std::move(problem));
  if (layout_is_good) check_pipeline(problems, options);
  for (std::string& problem : find_recompute_problems(options.recompute)) problems.add_message(std::move(problem));
  const ExecutionOptions& execution = options.execution;
  if (execution.deterministic_mode && execution.attention_backward == AttentionBackwardKind::fastest)
    problems.add("--attention-backward", "fastest", "two runs of it differ; drop it or --deterministic-mode");
  return std::move(problems.list);
}

void throw_problems(const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  std::string text = fmt::format("the configuration has {}:",
                                 problems.size() == 1 ? "a problem" : fmt::format("{} problems", problems.size()));
  for (const std::string& problem : problems) {
    // Further lines of an item (a caret line) are indented like its text.
    const std::vector<std::string> lines = split(problem, '\n');
    text += "\n  - " + join(lines, "\n    ");
  }
  throw UserError(text);
}

void check_options(const TrainOptions& options) { throw_problems(find_problems(options)); }

}  // namespace weft
