// Flags that are set but would have no effect are errors, lest the user believe they had one. What a flag needs is
// written here and nowhere else. A flag that is set to its default asks for nothing and is ignored.
#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "weft/base/text.h"
#include "weft/checkpoint/model_source.h"
#include "weft/train/options.h"

namespace weft {
namespace {

bool is_one_of(const Flag& flag, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), flag.name) != names.end();
}

bool is_yarn(const Flag& flag) {
  return is_one_of(
      flag, {"--original-max-position-embeddings", "--beta-fast", "--beta-slow", "--mscale", "--mscale-all-dim"});
}

// The flag has an effect if the pattern has any of these layers; "": always.
std::string_view layers_of(const Flag& flag) {
  if (is_one_of(flag, {"--num-attention-heads", "--position-embedding-type", "--rotary-base", "--rotary-scaling-factor",
                       "--qk-layernorm", "--reset-position-ids"}))  // latent attention always has its norms
    return "*+D";
  if (is_yarn(flag)) return "*+D";
  if (flag.name == "--add-bias-linear") return "*-E";
  if (is_one_of(flag, {"--ffn-hidden-size", "--activation", "--activation-func-clamp-value", "--glu-linear-offset"}))
    return "-E";
  if (flag.name == "--expert-model-parallel-size") return "E";
  if (flag.name == "--moe-per-layer-logging") return "E";
  if (flag.name.starts_with("--dsa-")) return "D";
  if (flag.name.starts_with("--mamba-")) return "M";
  if (flag.name.starts_with("--linear-") && flag.name != "--linear-attention-freq") return "G";
  if (flag.section == "Attention") return "*";
  if (flag.section == "Multi-latent attention") return "+D";
  if (flag.section == "Experts" || flag.section == "Balance of experts") return "E";
  return "";
}

// Whether a loaded model already decides it.
bool is_shape(const Flag& flag) {
  // These decide how it is trained.
  if (is_one_of(flag, {"--hf", "--mtp-loss-scaling-factor", "--dsa-indexer-loss-coeff"})) return false;
  if (is_one_of(flag, {"--vocab-size", "--make-vocab-size-divisible-by"})) return true;
  return flag.section == "Model" || flag.section == "Attention" || flag.section == "Multi-latent attention" ||
         flag.section == "Experts" || flag.section == "Recurrent layers";
}

class Idle {
 public:
  explicit Idle(const TrainOptions& options) : o_(options), m_(options.model) {}

  // Why the flag has no effect, and what to do; "" where it has one.
  std::string why(const Flag& flag) {
    std::error_code error;  // a folder that cannot be read is reported where the model is read
    const bool known = m_.hf.empty() || std::filesystem::exists(std::filesystem::path(m_.hf) / "config.json", error) ||
                       is_weft_checkpoint(m_.hf);
    if (const std::string_view layers = layers_of(flag); !layers.empty() && known && !has(layers)) {
      // Such a model has no positions anyway.
      if (flag.name == "--position-embedding-type" && m_.positions == PositionKind::none) return "";
      std::vector<std::string> list;
      for (const char layer : layers) list.emplace_back(1, layer);
      return fmt::format("the pattern '{}' has no {}; drop the flag", pattern(), join(list, ", "));
    }
    // Only the weights of a loaded model tell whether it has multi-token prediction.
    if (flag.name == "--mtp-loss-scaling-factor" && known && (m_.hf.empty() || has_weights(m_.hf)) &&
        !predicts_further())
      return fmt::format("the pattern '{}' has no /; drop the flag", pattern());
    if (flag.name.starts_with("--recompute-")) {
      const bool shared = !m_.hf.empty() || m_.moe_shared_expert_intermediate_size > 0;
      return why_recomputing_is_idle(flag, o_.recompute, known ? pattern() : "*+DEG-", shared);
    }
    if (m_.hf.empty())
      if (const std::string reason = of_model(flag); !reason.empty()) return reason;
    if (const std::string reason = of_balance(flag); !reason.empty()) return reason;
    return of_run(flag);
  }

 private:
  const std::string& pattern() {
    if (pattern_.empty()) pattern_ = m_.hf.empty() ? m_.pattern : read_model_config(m_.hf).pattern;
    return pattern_;
  }
  bool has(std::string_view layers) { return pattern().find_first_of(layers) != std::string::npos; }
  bool predicts_further() { return pattern().find('/') < pattern().size() - 1; }

  std::string of_model(const Flag& flag) {
    const bool latent = has("+D"), yarn = m_.positions == PositionKind::yarn;
    const bool turns = flag.name.starts_with("--rotary-") || flag.name == "--use-rope-scaling" || is_yarn(flag);
    if (turns && m_.positions == PositionKind::none && !latent)
      return "attention has no positions (--position-embedding-type none); drop one of the two";
    if (flag.name == "--rope-scaling-factor" && !m_.use_rope_scaling) return "needs --use-rope-scaling";
    if ((flag.name == "--rotary-scaling-factor" || is_yarn(flag)) && !yarn && !latent)
      return "needs --position-embedding-type yarn";
    if (is_yarn(flag) && !yarn && m_.rotary_scaling_factor == 1) return "needs --rotary-scaling-factor";
    const bool quick = m_.activation == ActivationKind::quick_geglu;
    if (flag.name == "--activation-func-clamp-value" && !quick && m_.activation != ActivationKind::swiglu)
      return "only swiglu and quick-geglu are clamped; drop the flag";
    if (flag.name == "--glu-linear-offset" && !quick) return "only quick-geglu has an offset; drop the flag";
    if (flag.name == "--moe-shared-expert-gate" && m_.moe_shared_expert_intermediate_size == 0)
      return "there is no shared expert; set --moe-shared-expert-intermediate-size";
    return "";
  }

  std::string of_balance(const Flag& flag) {
    if (is_one_of(flag, {"--moe-token-drop-policy", "--moe-pad-expert-input-to-capacity"}) &&
        m_.moe_expert_capacity_factor <= 0)
      return "needs --moe-expert-capacity-factor";
    if (flag.name == "--moe-router-bias-update-rate" && !m_.moe_router_enable_expert_bias)
      return "needs --moe-router-enable-expert-bias";
    BalanceSpec balance;
    if (flag.name == "--moe-per-layer-logging" && m_.hf.empty() && m_.moe_z_loss_coeff == 0 &&
        !balance_losses(m_, balance) && balance.aux_loss + balance.sequence_aux_loss + balance.global_aux_loss == 0)
      return "no loss balances the experts; set --moe-aux-loss-coeff or --moe-z-loss-coeff";
    if (flag.name == "--moe-router-load-balancing-type" && flag.show() != "none" && !balance_losses(m_, balance) &&
        balance.aux_loss + balance.sequence_aux_loss + balance.global_aux_loss == 0)
      return "its coefficient is 0; set --moe-aux-loss-coeff";
    return "";
  }

  std::string of_run(const Flag& flag) {
    const OptimizerOptions& optimizer = o_.optimizer;
    if (flag.name == "--split" && o_.data.data_path.empty() && !o_.data.mock_data)
      return "only --data-path and --mock-data are split; drop the flag";
    if (is_one_of(flag, {"--reset-attention-mask", "--reset-position-ids", "--eod-mask-loss"}) &&
        o_.data.data_path.empty() && o_.data.train_data_path.empty() && !o_.data.mock_data)
      return "stories and --text are one document; drop the flag, or use --data-path or --mock-data";
    if (flag.name.starts_with("--lr-wsd-") && optimizer.lr_decay_style != DecayStyle::wsd)
      return "only --lr-decay-style WSD uses it; drop the flag";
    if (flag.name == "--min-lr" && optimizer.lr_decay_style == DecayStyle::constant)
      return "with --lr-decay-style constant the learning rate does not fall; drop the flag";
    if (flag.name == "--lr-warmup-init" && learning_rate_spec(o_).warmup == 0)
      return "there is no warm-up; set --lr-warmup-iters";
    if (flag.name.starts_with("--adam-") && optimizer.optimizer != OptimizerKind::adam)
      return "only --optimizer adam uses it; drop the flag";
    if (flag.name == "--sgd-momentum" && optimizer.optimizer != OptimizerKind::sgd)
      return "only --optimizer sgd uses it; drop the flag";
    if (flag.name == "--ep-overlap-early-attn-memory-release" && !o_.execution.overlap_moe_expert_parallel_comm)
      return "needs --overlap-moe-expert-parallel-comm";
    if (flag.name == "--overlap-dispatch-backward-with-experts-wgrad" && o_.execution.overlap_moe_expert_parallel_comm)
      return "--overlap-moe-expert-parallel-comm already hides this exchange; drop one of the two";
    if (const std::string reason = of_sharding(flag); !reason.empty()) return reason;
    if (flag.name == "--emulate-network" && o_.layout.ranks == 1) return "there is only one rank; add --ranks N";
    const CheckpointOptions& checkpoint = o_.checkpoint;
    if (is_one_of(flag, {"--save-interval", "--async-save", "--keep-last", "--no-save-optim"}) &&
        checkpoint.save.empty())
      return "nothing is saved; set --save DIR";
    if (flag.name == "--async-save" && checkpoint.save_interval == 0)
      return "only checkpoints between steps are written beside them; set --save-interval N";
    if (flag.name == "--save-fallback" && checkpoint.save_hf.empty()) return "nothing is written; set --save-hf DIR";
    if (flag.name == "--skip-nonfinite-steps" && optimizer.clip_grad == 0)
      return "with --clip-grad 0 gradients are not checked; clip them";
    if (is_one_of(flag, {"--hf-family", "--hf-dtype"}) && checkpoint.save_hf.empty())
      return "no Hugging Face folder is written; set --save-hf DIR";
    if (flag.name == "--save-retain-interval" && checkpoint.keep_last == 0)
      return "all checkpoints are kept; set --keep-last N";
    if (is_one_of(flag, {"--ckpt-step", "--load-last-complete", "--finetune", "--no-load-optim",
                         "--load-main-params-from-ckpt", "--dist-ckpt-strictness", "--use-checkpoint-args"}) &&
        checkpoint.load.empty())
      return "nothing is loaded; set --load DIR";
    if (flag.name == "--load-last-complete" && checkpoint.ckpt_step > 0) return "--ckpt-step names the checkpoint";
    if (flag.name == "--no-load-optim" && checkpoint.finetune) return "--finetune loads weights only; drop the flag";
    if (o_.layout.pipeline_model_parallel_size == 1 &&
        (flag.name.starts_with("--decoder-") ||
         is_one_of(flag, {"--num-layers-per-virtual-pipeline-stage", "--pipeline-model-parallel-layout",
                          "--microbatch-group-size-per-virtual-pipeline-stage", "--pipeline-order"})))
      return "there are no pipeline stages; drop the flag";
    return "";
  }

  std::string of_sharding(const Flag& flag) const {
    const ShardingStrategy strategy = strategy_of(o_);
    if (is_one_of(flag, {"--suggested-communication-unit-size", "--fsdp-double-buffer",
                         "--megatron-fsdp-enable-fine-grained-param-gather"}) &&
        strategy != ShardingStrategy::optim_grads_params)
      return "weights are not gathered piece by piece; use --data-parallel-sharding-strategy optim_grads_params";
    if (is_one_of(flag, {"--megatron-fsdp-main-grads-dtype", "--megatron-fsdp-grad-comm-dtype"}) &&
        strategy == ShardingStrategy::no_shard)
      return "gradients are not divided; use --data-parallel-sharding-strategy, or --grad-reduce-in-bf16";
    if (flag.name == "--num-distributed-optimizer-instances" && strategy == ShardingStrategy::no_shard &&
        o_.sharding.num_distributed_optimizer_instances > 1)
      return "nothing is divided; use --data-parallel-sharding-strategy";
    if (flag.name == "--suggested-communication-unit-size" && o_.sharding.fsdp_double_buffer)
      return "--fsdp-double-buffer bounds what is gathered; drop one of the two";
    return "";
  }

  const TrainOptions& o_;
  const ModelOptions& m_;
  std::string pattern_;
};

// As the user wrote it, but under its main name: "--no-rope", "--moe-router-topk 4".
std::string written(const Flag& flag) {
  for (const Flag::Spelling& spelling : flag.spellings)
    if (spelling.text == flag.spelled && spelling.implied) return flag.spelled;
  return fmt::format("{} {}", flag.name, flag.show());
}

}  // namespace

std::vector<std::string> find_idle_flags(const FlagTable& flags, const TrainOptions& options) {
  TrainOptions defaults;
  FlagTable untouched("");
  add_train_flags(untouched, defaults);
  std::vector<std::string> problems;
  Idle idle(options);
  for (const Flag& flag : untouched.flags()) {
    if (flag.kind == FlagKind::foreign || !flags.is_set(flag.name)) continue;
    const Flag& set = flags.flag(flag.name);
    if (set.origin.source == FlagOrigin::Source::checkpoint) continue;  // no user asked for it
    if (!options.model.hf.empty() && is_shape(flag))
      problems.push_back(
          fmt::format("{}: --hf {} already decides the model; drop the flag", written(set), options.model.hf));
    else if (set.show() != flag.show())
      if (const std::string why = idle.why(set); !why.empty())
        problems.push_back(fmt::format("{}: {}", written(set), why));
  }
  if (options.model.hf.empty())
    for (std::string& problem : find_layer_problems(flags, options.model, flags.is_set("--pattern")))
      problems.push_back(std::move(problem));
  for (const char* name : {"--is-hybrid-model", "--spec"})
    if (options.model.hf.empty() && flags.is_set(name) && !flags.is_set("--pattern"))
      problems.push_back(fmt::format("{}: --pattern chooses the layers; set it", name));
  return problems;
}

std::vector<std::string> layout_notes(const TrainOptions& options) {
  std::vector<std::string> notes;
  if (options.layout.sequence_parallel && options.layout.tensor_model_parallel_size == 1)
    notes.emplace_back("--sequence-parallel has no effect: with --tensor-model-parallel-size 1 no layer is divided");
  if (options.layout.context_parallel_size == 1 && options.layout.cp_comm_type != LayoutOptions{}.cp_comm_type)
    notes.emplace_back("--cp-comm-type has no effect: with --context-parallel-size 1 every rank has whole samples");
  const std::int64_t sharing = options.layout.tensor_model_parallel_size * options.layout.context_parallel_size;
  if (sharing > 1 && options.model.moe_expert_capacity_factor > 0)
    notes.push_back(fmt::format(
        "--moe-expert-capacity-factor {}: each of the {} ranks that share a sample drops by the tokens that it "
        "routes, so what is dropped depends on their number",
        options.model.moe_expert_capacity_factor, sharing));
  return notes;
}

std::vector<std::string> overlap_notes(const TrainOptions& options) {
  const ExecutionOptions& e = options.execution;
  const bool weaves = e.overlap_moe_expert_parallel_comm;
  if (!weaves && !e.overlap_dispatch_backward_with_experts_wgrad) return {};
  const char* flag = weaves ? "--overlap-moe-expert-parallel-comm" : "--overlap-dispatch-backward-with-experts-wgrad";
  const bool transfers = weaves && options.layout.tensor_model_parallel_size > 1;  // which the weave hides, too
  if (options.layout.expert_model_parallel_size * options.layout.expert_tensor_parallel_size == 1 && !transfers)
    return {fmt::format("{} has no effect: with --expert-model-parallel-size 1 no tokens are exchanged", flag)};
  if (weaves && micro_batches(options) == 1)
    return {
        fmt::format("{} has no effect: a step has only one micro-batch, so there is no pair to weave; use "
                    "--global-batch-size {} or more",
                    flag, 2 * options.batch.global_batch_size)};
  return {};
}

}  // namespace weft
