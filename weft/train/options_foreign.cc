// Flags of Megatron's that Weft takes so that scripts can be brought along: accepted with a note where what they ask
// for is done anyway, refused with a reason where it is not.
#include <algorithm>
#include <initializer_list>

#include <fmt/format.h>

#include "weft/base/text.h"
#include "weft/train/options.h"

namespace weft {
namespace {

constexpr const char* no_checkpoints =
    "There are no checkpoints to resume from yet, so there is nothing to say of them.";
constexpr const char* no_resuming =
    "Weft has no checkpoints to resume from yet; leave it out (--hf DIR starts from a Hugging Face model, --save-hf "
    "DIR "
    "writes it at the end)";
constexpr const char* no_sharding =
    "weights, gradients and optimizer state are not sharded over data-parallel ranks yet; leave it out";
constexpr const char* no_recomputing =
    "activations are kept, not computed again; leave it out (a smaller --micro-batch-size needs less memory)";
constexpr const char* no_pipeline = "there are no pipeline stages yet; leave it out";
constexpr const char* no_wandb = "Weft does not write to Weights & Biases; use --tensorboard-dir DIR or --metrics FILE";

// Accepts the listed values; the reason is for all others.
FlagTable::Judge only(std::vector<std::string> values, std::string reason) {
  return [values = std::move(values), reason = std::move(reason)](const std::string& value) {
    return std::find(values.begin(), values.end(), value) != values.end() ? std::string() : reason;
  };
}

FlagTable::Judge zero(std::string reason) {
  return [reason = std::move(reason)](const std::string& value) {
    double number = 0;
    if (!parse_double(value, number)) return fmt::format("'{}' is not a number", value);
    return number == 0 ? std::string() : reason;
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
  flags.accept("--spec", "NAME", "The layers are those of --pattern.").takes_many();
  flags.accept("--attention-backend", "NAME", "Attention never holds a score matrix.");
  accept_all(flags, {"--use-flash-attn"}, "Attention never holds a score matrix.");
  accept_all(flags, {"--attention-softmax-in-fp32"}, "Softmax is always computed in float, or double with --fp64.");
  accept_all(flags,
             {"--no-gradient-accumulation-fusion", "--no-masked-softmax-fusion", "--no-bias-swiglu-fusion",
              "--no-bias-gelu-fusion", "--no-bias-dropout-fusion", "--no-rope-fusion", "--apply-rope-fusion",
              "--no-persist-layer-norm", "--no-gradient-reduce-div-fusion", "--cross-entropy-loss-fusion",
              "--moe-grouped-gemm", "--moe-permute-fusion", "--moe-router-fusion"},
             "How operations are fused is up to the device; results do not depend on it.");
  accept_all(flags, {"--cross-entropy-fusion-impl"}, "How operations are fused is up to the device.", "NAME");
  accept_all(flags, {"--accumulate-allreduce-grads-in-fp32"},
             "Gradients are added up in float, or double, unless --grad-reduce-in-bf16 says else.");
  accept_all(flags, {"--calculate-per-token-loss"}, "All micro-batches have as many tokens: the mean is the same.");
  accept_all(flags, {"--manual-gc"}, "There is no garbage collector.");
  accept_all(flags, {"--manual-gc-interval"}, "There is no garbage collector.", "N");
  accept_all(flags, {"--empty-unused-memory-level"}, "Memory is planned before the first step.", "N");
  accept_all(flags, {"--num-workers", "--num-dataset-builder-threads"},
             "Samples are computed where they are needed; no workers load them.", "N");
  flags.accept("--test-data-path", "PREFIX", "A run ends with validation; nothing is tested.").takes_many();
  accept_all(flags, {"--data-cache-path"}, "The order of samples is computed in memory; there is no cache.", "DIR");
  accept_all(flags, {"--no-mmap-bin-files"}, "How token files are read makes no difference.");
  accept_all(flags, {"--no-create-attention-mask-in-dataloader"}, "There are no mask tensors.");
  accept_all(flags, {"--multi-latent-attention"}, "Which layers have it is said by --pattern: +.");
  accept_all(flags, {"--is-hybrid-model"}, "Every model is: --pattern says its layers.");
  accept_all(flags, {"--log-throughput"}, "Throughput is always logged.");
  accept_all(flags, {"--no-position-embedding"}, "There are no learned positions.");
  accept_all(flags, {"--use-cpu-initialization"}, "Initial weights are the same everywhere and in every layout.");
  accept_all(flags, {"--check-for-nan-in-loss-and-grad"}, "A NaN always stops the run.");
  accept_all(flags, {"--initial-loss-scale", "--min-loss-scale", "--loss-scale-window", "--hysteresis"},
             "Only fp16 scales its loss, which Weft does not do.", "X");
  accept_all(flags, {"--overlap-grad-reduce", "--align-grad-reduce", "--no-align-grad-reduce"},
             "Gradients of a unit are always summed over ranks beside the computation of others.");
  accept_all(flags, {"--ddp-bucket-size", "--ddp-num-buckets"}, "Gradients are summed unit by unit.", "N");
  accept_all(flags, {"--ddp-average-in-collective", "--ddp-pad-buckets-for-high-nccl-busbw"},
             "Gradients are summed unit by unit.");
  accept_all(flags, {"--moe-shared-expert-overlap"}, "A plan decides what runs beside what; results do not change.");
  accept_all(flags, {"--moe-enable-deepep"}, "Tokens are exchanged by all-to-all; results are the same.");
  accept_all(flags, {"--moe-flex-dispatcher-backend"}, "Tokens are exchanged by all-to-all; results are the same.",
             "NAME");
  accept_all(flags, {"--sequence-parallel", "--tp-comm-overlap", "--no-async-tensor-model-parallel-allreduce"},
             "It is for tensor ranks, which there are none of.");
  accept_all(flags, {"--cp-comm-type"}, "It is for context ranks, which there are none of.", "NAME");
  accept_all(flags,
             {"--use-tp-pp-dp-mapping", "--no-overlap-p2p-communication", "--overlap-p2p-communication-warmup-flush",
              "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split",
              "--defer-embedding-wgrad-compute"},
             "It is for pipeline stages, which there are none of.");
  accept_all(flags, {"--enable-cuda-graph"}, "A step is one CUDA graph wherever it can be: --cuda-graph.");
  accept_all(flags, {"--override-opt-param-scheduler", "--override-opt_param-scheduler"}, "The flags always decide.");
  accept_all(flags,
             {"--no-save-optim", "--no-save-rng", "--no-load-optim", "--no-load-rng", "--use-dist-ckpt",
              "--ckpt-fully-parallel-load", "--no-ckpt-fully-parallel-save", "--ckpt-assume-constant-structure",
              "--auto-detect-ckpt-format", "--dist-ckpt-optim-fully-reshardable", "--verify-integrity"},
             no_checkpoints);
  accept_all(flags, {"--ckpt-format", "--dist-ckpt-format", "--dist-ckpt-strictness"}, no_checkpoints, "NAME");
  flags.accept("--normalization", "RMSNorm", "The only norm.",
               only({"RMSNorm"}, "Weft has RMSNorm only; use --normalization RMSNorm or leave the flag out"));
  flags.accept("--optimizer", "adam", "AdamW with decoupled weight decay.",
               only({"adam", "adamw"}, "Weft has AdamW only; use --optimizer adam or leave the flag out"));
  flags.accept("--moe-token-dispatcher-type", "NAME", "Tokens are exchanged by all-to-all; results are the same.",
               only({"alltoall", "allgather", "flex"}, "not one of alltoall, allgather, flex"));
  flags.accept("--moe-router-dtype", "fp32", "The router is always computed in float, or double with --fp64.",
               only({"fp32"}, "the router is computed in float, and in double only with --fp64"));
  flags.accept("--moe-layer-freq", "1", "Which layers hold experts is said by --pattern.",
               only({"1"}, "say which layers hold experts by --pattern: [*-] is a dense layer, [*E] one with experts"));
  for (const char* name : {"--attention-dropout", "--hidden-dropout"})
    flags.accept(name, "0", "There is no dropout.", zero("Weft has no dropout; use 0 or leave the flag out"));
  for (const char* name : {"--main-grads-dtype", "--main-params-dtype", "--exp-avg-dtype", "--exp-avg-sq-dtype"})
    flags.accept(name, "fp32",
                 "Gradients and the optimizer are in float, gradients unless --grad-reduce-in-bf16 says else.",
                 only({"fp32"},
                      "gradients and the optimizer are in float; leave it out (--grad-reduce-in-bf16 keeps "
                      "gradients in bf16)"));
  flags.accept("--dataloader-type", "single", "Samples come in Megatron's order.",
               only({"single"}, "samples come in the order of 'single'; leave it out"));
  flags.accept("--expert-tensor-parallel-size", "1", "Experts are whole.",
               only({"1"},
                    "Weft does not cut experts yet; leave it out, and spread them by "
                    "--expert-model-parallel-size"));
  flags.accept("--num-distributed-optimizer-instances", "1", "There is one.", only({"1"}, no_sharding));
  flags.accept("--data-parallel-sharding-strategy", "no_shard", "Nothing is sharded.", only({"no_shard"}, no_sharding));
  flags.accept("--rerun-mode", "disabled", "No step is run again.",
               only({"disabled"}, "no step is run again, and a NaN stops the run; leave it out"));
  flags.accept("--timing-log-level", "0", "There are no timers.",
               zero("there are no timers in the log; --timeline FILE draws the last step"));
  flags.accept("--tensorboard-log-interval", "1", "Every step is written.",
               only({"1"}, "every step is written; leave it out"));
}

void add_refused_flags(FlagTable& flags) {
  flags.section("Refused from Megatron");
  refuse_all(flags, {"--save", "--load", "--pretrained-checkpoint", "--non-persistent-ckpt-type"}, no_resuming, "DIR");
  refuse_all(flags, {"--save-interval", "--save-retain-interval", "--non-persistent-save-interval", "--ckpt-step"},
             no_resuming, "N");
  refuse_all(flags,
             {"--async-save", "--finetune", "--use-checkpoint-args", "--use-checkpoint-opt-param-scheduler",
              "--exit-on-missing-checkpoint"},
             no_resuming);
  refuse_all(flags, {"--exit-interval", "--exit-duration-in-mins"}, "a run ends after --train-iters; set that", "N");
  refuse_all(flags, {"--exit-signal-handler"}, "a signal ends the run at once and nothing is saved; leave it out");
  refuse_all(flags,
             {"--use-distributed-optimizer", "--overlap-param-gather", "--overlap-param-gather-with-optimizer-step",
              "--use-megatron-fsdp", "--use-torch-fsdp2"},
             no_sharding);
  refuse_all(flags, {"--optimizer-cpu-offload", "--cpu-offloading", "--use-precision-aware-optimizer"},
             "weights, gradients and the optimizer's state stay on the device, in float; leave it out");
  refuse_all(flags, {"--recompute-activations", "--moe-layer-recompute"}, no_recomputing);
  refuse_all(flags, {"--recompute-granularity", "--recompute-method", "--recompute-num-layers"}, no_recomputing,
             "NAME");
  flags.refuse("--recompute-modules", "NAME", no_recomputing).takes_many();
  refuse_all(flags, {"--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"}, no_pipeline,
             "N");
  refuse_all(flags, {"--pipeline-model-parallel-layout"}, no_pipeline, "TEXT");
  refuse_all(flags, {"--overlap-dispatch-backward-with-experts-wgrad"},
             "use --overlap-moe-expert-parallel-comm, with --delay-wgrad-compute");
  refuse_all(flags, {"--cuda-graph-impl", "--cuda-graph-scope"}, "say --cuda-graph none or full", "NAME");
  refuse_all(flags, {"--external-cuda-graph"}, "say --cuda-graph none or full");
  refuse_all(flags, {"--tokenizer-model", "--vocab-file", "--merge-file"},
             "Weft reads no tokenizer's files; make token files with Megatron's tools and give --data-path PREFIX with "
             "--vocab-size N",
             "FILE");
  refuse_all(flags, {"--data-args-path", "--per-split-data-args-path"},
             "write data-path = [...] into a TOML file and name it by --config", "FILE");
  refuse_all(flags, {"--reset-position-ids", "--reset-attention-mask", "--eod-mask-loss"},
             "documents of a sample see each other, and every token counts in the loss; leave it out");
  refuse_all(flags, {"--padded-vocab-size"}, "set --make-vocab-size-divisible-by", "N");
  refuse_all(flags, {"--full-validation"}, "set --eval-iters");
  refuse_all(flags, {"--skip-train"}, "Weft validates only beside training; leave it out");
  refuse_all(flags, {"--wandb-project", "--wandb-exp-name", "--wandb-entity", "--wandb-save-dir"}, no_wandb, "NAME");
  refuse_all(flags,
             {"--log-params-norm", "--log-num-zeros-in-grad", "--log-timers-to-tensorboard", "--log-progress",
              "--log-memory-to-tensorboard", "--log-validation-ppl-to-tensorboard", "--log-straggler",
              "--moe-per-layer-logging"},
             "Weft does not log it; leave it out (--metrics FILE has a JSON line a step)");
  refuse_all(flags, {"--log-memory-interval"}, "memory is planned and said before the first step; leave it out", "N");
  refuse_all(flags, {"--profile", "--use-pytorch-profiler"}, "use --timeline FILE or --trace FILE");
  refuse_all(flags, {"--profile-step-start", "--profile-step-end"}, "use --timeline FILE: it shows the last step", "N");
  refuse_all(flags, {"--fp16"}, "Weft does not train in fp16, whose range needs loss scaling; use --bf16");
  refuse_all(flags, {"--loss-scale"}, "no precision of Weft needs a loss scale; leave it out", "X");
  refuse_all(flags, {"--fp8-format", "--fp8-recipe"}, "Weft has no fp8 yet; use --bf16", "NAME");
  refuse_all(flags, {"--fp8-param-gather"}, "Weft has no fp8 yet; use --bf16");
  refuse_all(flags, {"--fp32-residual-connection"}, "the residual stream has the model's type; leave it out");
  refuse_all(flags, {"--apply-query-key-layer-scaling"}, "it is for fp16, which Weft does not have; leave it out");
  refuse_all(flags, {"--init-method-xavier-uniform"}, "weights start normal; set --init-method-std");
  refuse_all(flags, {"--no-check-for-nan-in-loss-and-grad"}, "a NaN always stops the run; leave it out");
  refuse_all(flags, {"--check-for-spiky-loss"}, "only a NaN stops the run; leave it out");
  for (const char* name : {"--rampup-batch-size", "--step-batch-size-schedule"})
    flags.refuse(name, "TEXT", "the batch cannot grow yet; set --global-batch-size").takes_many();
  refuse_all(flags, {"--decoupled-lr", "--decoupled-min-lr"}, "all parameters have one learning rate; set --lr", "X");
  refuse_all(flags, {"--apply-wd-to-qk-layernorm"}, "--decay-all decays all norms; one kind alone is not there");
  refuse_all(flags, {"--mtp-num-layers"}, "say it in the pattern: one /[*E] behind the main part for each depth", "N");
  refuse_all(flags, {"--linear-attention-freq", "--experimental-attention-variant", "--hybrid-attention-ratio"},
             "say by --pattern which layers are what: G is a gated delta net, M Mamba-2", "TEXT");
  refuse_all(flags, {"--window-attn-skip-freq", "--no-rope-freq"},
             "all attention layers of a model made of flags are the same; leave it out", "TEXT");
  refuse_all(flags, {"--moe-input-jitter-eps"}, "the router's input is not disturbed; leave it out", "X");
}

}  // namespace

void add_foreign_flags(FlagTable& flags) {
  add_accepted_flags(flags);
  add_refused_flags(flags);
}

}  // namespace weft
