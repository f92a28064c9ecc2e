#include "weft/train/options.h"

#include <algorithm>

#include <fmt/format.h>

#include "weft/train/checkpoint_args.h"
#include "weft/train/tokenizer_flags.h"
#include "weft/train/toml.h"

namespace weft {
namespace {

constexpr std::int64_t default_iterations = 200;
constexpr std::int64_t default_experts = 8;
constexpr std::int64_t default_mamba_groups = 8;
constexpr std::int64_t default_story_bytes = 4'000'000;

class Resolver {
 public:
  template <class T>
  void set(T& target, const T& value, const char* flag, std::string reason) {
    target = value;
    derivations.push_back({flag, std::move(reason)});
  }
  // A count that is not set is 0. A value of 0 (from a division that is not exact) is left to the checks.
  void count(std::int64_t& target, std::int64_t value, const char* flag, const char* reason) {
    if (target == 0 && value > 0) set(target, value, flag, reason);
  }

  std::vector<Derivation> derivations;
};

void resolve_model(Resolver& resolver, ModelOptions& model) {
  if (model.pattern.empty() && model.num_layers > 0)
    resolver.set(model.pattern, pattern_of_layers(model), "--pattern",
                 "made from num-layers and the flags that choose the kinds of layers");
  if (model.pattern.empty())
    resolver.set(model.pattern, std::string(default_pattern), "--pattern",
                 "neither --pattern nor --num-layers is given");
  const bool has_experts = model.pattern.find('E') != std::string::npos;

  resolver.count(model.ffn_hidden_size, 4 * model.hidden_size, "--ffn-hidden-size", "4 x hidden-size");
  if (model.num_attention_heads > 0 && model.hidden_size % model.num_attention_heads == 0)
    resolver.count(model.kv_channels, model.hidden_size / model.num_attention_heads, "--kv-channels",
                   "hidden-size / num-attention-heads");
  if (model.group_query_attention)
    resolver.count(model.num_query_groups, 1, "--num-query-groups",
                   "--group-query-attention is given without --num-query-groups");
  resolver.count(model.num_query_groups, model.num_attention_heads, "--num-query-groups", "num-attention-heads");
  if (model.pattern.find('M') != std::string::npos && model.mamba_head_dim > 0) {
    resolver.count(model.mamba_num_heads, 2 * model.hidden_size / model.mamba_head_dim, "--mamba-num-heads",
                   "2 x hidden-size / mamba-head-dim");
    resolver.count(model.mamba_num_groups, std::min(default_mamba_groups, model.mamba_num_heads), "--mamba-num-groups",
                   "8, or mamba-num-heads if that is fewer");
  }
  if (model.pattern.find('G') != std::string::npos && model.linear_value_head_dim > 0) {
    resolver.count(model.linear_num_value_heads,
                   std::max<std::int64_t>(2 * model.hidden_size / model.linear_value_head_dim, 1),
                   "--linear-num-value-heads", "2 x hidden-size / linear-value-head-dim");
    resolver.count(model.linear_num_key_heads, std::max<std::int64_t>(model.linear_num_value_heads / 2, 1),
                   "--linear-num-key-heads", "linear-num-value-heads / 2");
  }
  if (!has_experts) return;
  resolver.count(model.num_experts, default_experts, "--num-experts", "the pattern has E");
  resolver.count(model.moe_ffn_hidden_size, model.ffn_hidden_size, "--moe-ffn-hidden-size", "ffn-hidden-size");
  if (!model.moe_router_norm_topk) {
    const bool sigmoid = model.moe_router_score_function == RouterSpec::Score::sigmoid;
    const bool norm = sigmoid ? model.moe_router_topk > 1 : !model.moe_router_pre_softmax;
    resolver.set(model.moe_router_norm_topk, std::optional<bool>(norm), "--moe-router-norm-topk",
                 sigmoid ? "sigmoid scores are normalised if topk > 1"
                 : norm  ? "the softmax is over the chosen experts"
                         : "the softmax is over all experts");
  }
}

void resolve_data(Resolver& resolver, DataOptions& data, bool own_model) {
  if (data.data_path.empty() && data.train_data_path.empty() && !data.mock_data && data.text.empty())
    resolver.count(data.stories, default_story_bytes, "--stories", "no other data is given");
  // A loaded model has a tokenizer of its own.
  TokenizerChoice& tokenizer = data.tokenizer;
  if (const bool ids = tokenizer.vocab_size > 0;
      tokenizer.type.empty() && tokenizer.model.empty() && (own_model || ids))
    resolver.set(tokenizer.type, std::string(ids ? "NullTokenizer" : "ByteTokenizer"), "--tokenizer-type",
                 ids ? "--vocab-size is given" : "--vocab-size is not given");
}

void resolve_batch(Resolver& resolver, TrainOptions& options) {
  LayoutOptions& layout = options.layout;
  BatchOptions& batch = options.batch;
  resolver.count(layout.ranks, layout.launched_ranks, "--ranks",
                 layout.launched_ranks > 1 ? "number of processes that the launcher started" : "no launcher");
  resolver.count(layout.expert_tensor_parallel_size, layout.tensor_model_parallel_size, "--expert-tensor-parallel-size",
                 "tensor-model-parallel-size");
  const std::int64_t data_parallel = std::max<std::int64_t>(1, layout.data_parallel_size());
  resolver.count(batch.global_batch_size, batch.micro_batch_size * data_parallel, "--global-batch-size",
                 "micro-batch-size x data-parallel ranks");
  if (batch.train_samples > 0)
    resolver.count(batch.train_iters, batch.train_samples / std::max<std::int64_t>(1, batch.global_batch_size),
                   "--train-iters", "train-samples / global-batch-size");
  else
    resolver.count(batch.train_iters, default_iterations, "--train-iters",
                   "neither --train-iters nor --train-samples is given");
}

void resolve_optimizer(Resolver& resolver, TrainOptions& options) {
  OptimizerOptions& optimizer = options.optimizer;
  if (optimizer.lr_decay_samples == 0 && options.batch.train_samples == 0)
    resolver.count(optimizer.lr_decay_iters, options.batch.train_iters, "--lr-decay-iters", "train-iters");
  if (optimizer.weight_decay_incr_style != WeightDecayStyle::constant) return;
  const std::optional<double> decay = optimizer.weight_decay;
  if (!optimizer.start_weight_decay)
    resolver.set(optimizer.start_weight_decay, decay, "--start-weight-decay", "weight-decay");
  if (!optimizer.end_weight_decay)
    resolver.set(optimizer.end_weight_decay, decay, "--end-weight-decay", "weight-decay");
}

}  // namespace

std::vector<Derivation> resolve(TrainOptions& options) {
  Resolver resolver;
  if (options.model.hf.empty()) resolve_model(resolver, options.model);
  resolve_data(resolver, options.data, options.model.hf.empty());
  resolve_batch(resolver, options);
  resolve_optimizer(resolver, options);
  return std::move(resolver.derivations);
}

void parse_train_options(FlagTable& flags, TrainOptions& options, std::span<const std::string> words,
                         const std::function<std::int64_t()>& launched_ranks) {
  parse_flags(flags, words);
  if (flags.help_wanted()) return;
  take_checkpoint_args(flags, options);
  options.layout.launched_ranks = launched_ranks ? launched_ranks() : 1;

  for (const Derivation& derivation : resolve(options)) flags.mark_derived(derivation.flag, derivation.reason);
  if (!options.explain.empty()) return;
  // Read once, for all ranks of this process.
  if (TokenizerChoice& tokenizer = options.data.tokenizer;
      names_file(tokenizer) && tokenizer_flags_problem(tokenizer).empty())
    tokenizer.loaded = make_tokenizer(tokenizer);
  std::vector<std::string> problems = find_problems(options);
  for (std::string& problem : find_idle_flags(flags, options)) problems.push_back(std::move(problem));
  throw_problems(problems);
}

}  // namespace weft
