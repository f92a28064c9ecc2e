// Flags of Megatron's that Weft recognises so that its scripts can be reused: accepted with a note where Weft does what
// they ask for anyway, refused with a reason where it does not.
#include <algorithm>
#include <initializer_list>

#include <fmt/format.h>

#include "weft/base/text.h"
#include "weft/train/options.h"

namespace weft {
namespace {

constexpr const char* one_form = "Weft's checkpoints have one form: checked, and for any layout.";
constexpr const char* no_random_state =
    "Random numbers are a function of the seed and what they are for: there is no state.";
constexpr const char* other_checkpoints =
    "Weft does not do this with checkpoints yet; drop the flag (--save, --save-interval and --load save and go on)";
constexpr const char* no_wandb = "Weft does not write to Weights & Biases; use --tensorboard-dir DIR or --metrics FILE";

// Accepts the listed values and refuses all others for the given reason.
FlagTable::Judge only(std::vector<std::string> values, std::string reason) {
  return [values = std::move(values), reason = std::move(reason)](const std::string& value) {
    return std::find(values.begin(), values.end(), value) != values.end() ? std::string() : reason;
  };
}

// Accepts one number, however it is written.
FlagTable::Judge only_number(double wanted, std::string reason) {
  return [wanted, reason = std::move(reason)](const std::string& value) {
    double number = 0;
    if (!parse_double(value, number)) return fmt::format("'{}' is not a number", value);
    return number == wanted ? std::string() : reason;
  };
}

void accept_all(FlagTable& flags, std::initializer_list<const char*> names, const std::string& note,
                const std::string& value_name = "") {
  for (const char* name : names) flags.accept(name, value_name, note);
}

void refuse_all(FlagTable& flags, std::initializer_list<const char*> names, const std::string& reason,
                const std::string& value_name = "") {
  for (const char* name : names) flags.refuse(name, value_name, reason);
}

void add_accepted_flags(FlagTable& flags) {
  flags.section("Accepted from Megatron");
  accept_all(flags, {"--use-mcore-models", "--use-legacy-models"}, "Weft has one kind of model.");
  flags.accept("--transformer-impl", "NAME", "Weft has one implementation.");
  flags.accept("--spec", "NAME", "--pattern chooses the layers.").takes_many();
  flags.accept("--attention-backend", "NAME", "Attention never holds a score matrix.");
  accept_all(flags, {"--use-flash-attn"}, "Attention never holds a score matrix.");
  accept_all(flags, {"--attention-softmax-in-fp32"}, "Softmax is always computed in float, or double with --fp64.");
  accept_all(flags,
             {"--no-gradient-accumulation-fusion", "--no-masked-softmax-fusion", "--no-bias-swiglu-fusion",
              "--no-bias-gelu-fusion", "--no-bias-dropout-fusion", "--no-rope-fusion", "--apply-rope-fusion",
              "--no-persist-layer-norm", "--cross-entropy-loss-fusion", "--moe-grouped-gemm", "--moe-permute-fusion",
              "--moe-router-fusion"},
             "The device decides how to fuse operations; results do not depend on it.");
  accept_all(flags, {"--cross-entropy-fusion-impl"}, "The device decides how to fuse operations.", "NAME");
  accept_all(flags, {"--accumulate-allreduce-grads-in-fp32"},
             "Gradients are summed in float, or double with --fp64, unless --grad-reduce-in-bf16 is set.");
  accept_all(flags, {"--ddp-reduce-scatter-with-fp32-accumulation"},
             "Sums of bf16 over ranks are always added in float and rounded once.");
  accept_all(flags, {"--no-gradient-reduce-div-fusion"}, "Losses are scaled, so nothing is divided afterwards.");
  accept_all(flags, {"--manual-gc"}, "There is no garbage collector.");
  accept_all(flags, {"--manual-gc-interval"}, "There is no garbage collector.", "N");
  accept_all(flags, {"--empty-unused-memory-level"}, "Memory is planned before the first step.", "N");
  accept_all(flags, {"--num-workers", "--num-dataset-builder-threads"},
             "Samples are computed when they are needed; there are no workers.", "N");
  flags.accept("--test-data-path", "PREFIX", "A run ends with validation; there is no test.").takes_many();
  accept_all(flags, {"--data-cache-path"}, "The order of samples is computed in memory; there is no cache.", "DIR");
  accept_all(flags, {"--no-mmap-bin-files"}, "How token files are read makes no difference.");
  accept_all(flags, {"--no-create-attention-mask-in-dataloader"}, "There are no mask tensors.");
  accept_all(flags, {"--is-hybrid-model"}, "--pattern chooses the layers of every model.");
  accept_all(flags, {"--log-throughput"}, "Throughput is always logged.");
  accept_all(flags, {"--no-position-embedding"}, "There are no learned positions.");
  accept_all(flags, {"--use-cpu-initialization"}, "Initial weights are the same everywhere and in every layout.");
  accept_all(flags, {"--check-for-nan-in-loss-and-grad"},
             "A NaN stops the run, unless --skip-nonfinite-steps goes on.");
  accept_all(flags, {"--initial-loss-scale", "--min-loss-scale", "--loss-scale-window", "--hysteresis"},
             "Only fp16 needs loss scaling, and Weft does not train in fp16.", "X");
  accept_all(flags, {"--overlap-grad-reduce", "--align-grad-reduce", "--no-align-grad-reduce"},
             "The gradients of a unit are always summed over ranks while others are computed.");
  accept_all(flags, {"--ddp-bucket-size", "--ddp-num-buckets"}, "Gradients are summed unit by unit.", "N");
  accept_all(flags, {"--ddp-average-in-collective", "--ddp-pad-buckets-for-high-nccl-busbw"},
             "Gradients are summed unit by unit.");
  accept_all(flags, {"--moe-shared-expert-overlap"}, "The plan decides what overlaps; results do not depend on it.");
  accept_all(flags, {"--moe-enable-deepep"}, "Tokens are exchanged by all-to-all; results are the same.");
  accept_all(flags, {"--moe-flex-dispatcher-backend"}, "Tokens are exchanged by all-to-all; results are the same.",
             "NAME");
  accept_all(flags, {"--tp-comm-overlap", "--no-async-tensor-model-parallel-allreduce"},
             "The plan decides what overlaps; results do not depend on it.");
  accept_all(
      flags,
      {"--no-overlap-p2p-communication", "--overlap-p2p-communication-warmup-flush", "--defer-embedding-wgrad-compute"},
      "Transfers between stages always travel beside computation; results do not depend on it.");
  accept_all(flags, {"--enable-cuda-graph"}, "A step is one CUDA graph where possible; see --cuda-graph.");
  accept_all(flags, {"--override-opt-param-scheduler", "--override-opt_param-scheduler"},
             "The flags always decide the schedule.");
  accept_all(flags,
             {"--use-dist-ckpt", "--ckpt-fully-parallel-load", "--no-ckpt-fully-parallel-save",
              "--ckpt-assume-constant-structure", "--auto-detect-ckpt-format", "--dist-ckpt-optim-fully-reshardable",
              "--verify-integrity"},
             one_form);
  accept_all(flags, {"--ckpt-format", "--dist-ckpt-format"}, one_form, "NAME");
  accept_all(flags, {"--no-save-rng", "--no-load-rng"}, no_random_state);
  flags.accept("--normalization", "RMSNorm", "It is the only norm.",
               only({"RMSNorm"}, "Weft has only RMSNorm; use --normalization RMSNorm or drop the flag"));
  flags.accept("--moe-token-dispatcher-type", "NAME", "Tokens are exchanged by all-to-all; results are the same.",
               only({"alltoall", "allgather", "flex"}, "not one of alltoall, allgather, flex"));
  flags.accept("--moe-router-dtype", "fp32", "The router is always computed in float, or double with --fp64.",
               only({"fp32"}, "the router is computed in float, and in double only with --fp64"));
  for (const char* name : {"--attention-dropout", "--hidden-dropout"})
    flags.accept(name, "0", "There is no dropout.", only_number(0, "Weft has no dropout; use 0 or drop the flag"));
  for (const char* name : {"--main-grads-dtype", "--main-params-dtype", "--exp-avg-dtype", "--exp-avg-sq-dtype"})
    flags.accept(name, "fp32",
                 "Gradients and optimizer state are in float; --grad-reduce-in-bf16 keeps gradients in bf16.",
                 only({"fp32"},
                      "gradients and optimizer state are in float; drop the flag (--grad-reduce-in-bf16 keeps "
                      "gradients in bf16)"));
  flags.accept("--dataloader-type", "single", "Samples come in Megatron's order.",
               only({"single"}, "samples come in the order of 'single'; drop the flag"));
  flags.accept("--megatron-fsdp-version", "1", "Weft has one way to shard.",
               only({"1", "2"}, "not a version of Megatron-FSDP"));
  flags.accept("--megatron-fsdp-main-params-dtype", "fp32", "Weights are trained in float.",
               only({"fp32", "auto"}, "weights are trained in float; drop the flag"));
  accept_all(
      flags,
      {"--overlap-param-gather", "--create-all-gather-group", "--megatron-fsdp-max-pool-double-buffer",
       "--fsdp-db-use-persist-buf-on-alloc-fail", "--init-model-with-meta-device", "--use-nccl-ub",
       "--disable-symmetric-registration", "--fsdp-manual-registration"},
      "Gathers and reductions always have communicators of their own, memory planned before the run, and overlap "
      "with computation.");
  flags.accept("--rerun-mode", "disabled", "No step is rerun.",
               only({"disabled"}, "no step is rerun, and a NaN stops the run; drop the flag"));
  flags.accept("--timing-log-level", "0", "There are no timers.",
               only_number(0, "there are no timers in the log; --timeline FILE draws the last step"));
  flags.accept("--tensorboard-log-interval", "1", "Every step is written.",
               only_number(1, "every step is written; drop the flag"));
}

void add_refused_flags(FlagTable& flags) {
  flags.section("Refused from Megatron");
  refuse_all(flags,
             {"--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split",
              "--standalone-embedding-stage"},
             "place the layers with pipes in --pattern or with --pipeline-model-parallel-layout");
  refuse_all(flags, {"--pretrained-checkpoint", "--non-persistent-ckpt-type"}, other_checkpoints, "DIR");
  refuse_all(flags, {"--non-persistent-save-interval"}, other_checkpoints, "N");
  refuse_all(flags, {"--use-checkpoint-opt-param-scheduler", "--exit-on-missing-checkpoint"}, other_checkpoints);
  refuse_all(flags, {"--overlap-param-gather-with-optimizer-step"},
             "use --overlap-optimizer, which also gathers weights beside updates");
  refuse_all(flags, {"--use-torch-fsdp2"}, "use --use-megatron-fsdp");
  refuse_all(flags, {"--optimizer-cpu-offload", "--cpu-offloading", "--use-precision-aware-optimizer"},
             "weights, gradients and optimizer state stay on the device, in float; drop the flag");
  refuse_all(flags, {"--moe-layer-recompute"}, "use --recompute-granularity selective --recompute-modules moe");
  refuse_all(flags, {"--cuda-graph-impl", "--cuda-graph-scope"}, "use --cuda-graph none or full", "NAME");
  refuse_all(flags, {"--external-cuda-graph"}, "use --cuda-graph none or full");
  refuse_all(flags, {"--data-args-path", "--per-split-data-args-path"},
             "write data-path = [...] into a TOML file and pass it with --config", "FILE");
  refuse_all(flags, {"--padded-vocab-size"}, "set --make-vocab-size-divisible-by", "N");
  refuse_all(flags, {"--full-validation"}, "set --eval-iters");
  refuse_all(flags, {"--skip-train"}, "Weft validates only while training; drop the flag");
  refuse_all(flags, {"--wandb-project", "--wandb-exp-name", "--wandb-entity", "--wandb-save-dir"}, no_wandb, "NAME");
  refuse_all(flags,
             {"--log-params-norm", "--log-num-zeros-in-grad", "--log-timers-to-tensorboard", "--log-progress",
              "--log-memory-to-tensorboard", "--log-validation-ppl-to-tensorboard", "--log-straggler"},
             "Weft does not log it; drop the flag (--metrics FILE writes one JSON line per step)");
  refuse_all(flags, {"--log-memory-interval"}, "memory is planned and reported before the first step; drop the flag",
             "N");
  refuse_all(flags, {"--profile", "--use-pytorch-profiler"}, "use --timeline FILE or --trace FILE");
  refuse_all(flags, {"--profile-step-start", "--profile-step-end"}, "use --timeline FILE, which shows the last step",
             "N");
  refuse_all(flags, {"--fp16"}, "Weft does not train in fp16, whose range needs loss scaling; use --bf16");
  refuse_all(flags, {"--loss-scale"}, "Weft trains in no precision that needs a loss scale; drop the flag", "X");
  refuse_all(flags, {"--fp8-format", "--fp8-recipe"}, "Weft has no fp8 yet; use --bf16", "NAME");
  refuse_all(flags, {"--fp8-param-gather"}, "Weft has no fp8 yet; use --bf16");
  refuse_all(flags, {"--fp32-residual-connection"}, "the residual stream has the type of the model; drop the flag");
  refuse_all(flags, {"--apply-query-key-layer-scaling"}, "it is for fp16, which Weft does not have; drop the flag");
  refuse_all(flags, {"--init-method-xavier-uniform"},
             "initial weights are normally distributed; set --init-method-std");
  refuse_all(flags, {"--no-check-for-nan-in-loss-and-grad"}, "a NaN stops the run; --skip-nonfinite-steps N goes on");
  refuse_all(flags, {"--check-for-spiky-loss"},
             "a loss that jumps is logged in any case, and only a NaN stops the run; drop the flag");
  for (const char* name : {"--rampup-batch-size", "--step-batch-size-schedule"})
    flags.refuse(name, "TEXT", "the batch cannot grow yet; set --global-batch-size").takes_many();
  refuse_all(flags, {"--decoupled-lr", "--decoupled-min-lr"}, "all parameters have one learning rate; set --lr", "X");
  refuse_all(flags, {"--apply-wd-to-qk-layernorm"},
             "--decay-all decays all norm weights; a single kind cannot be chosen");
  refuse_all(flags, {"--hybrid-attention-ratio", "--hybrid-mlp-ratio"},
             "choose the layers with --pattern: M is Mamba-2, * attention, - an MLP", "X");
  refuse_all(flags, {"--window-attn-skip-freq", "--no-rope-freq"},
             "all attention layers of a model built from flags are alike; drop the flag", "TEXT");
  refuse_all(flags, {"--moe-input-jitter-eps"}, "Weft adds no noise to the router's input; drop the flag", "X");
}

}  // namespace

void add_foreign_flags(FlagTable& flags) {
  add_accepted_flags(flags);
  add_refused_flags(flags);
}

}  // namespace weft
