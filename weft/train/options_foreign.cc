// Flags of Megatron's that Weft takes so that scripts can be brought along: accepted with a note where what they ask
// for is done anyway, refused with a reason where it is not.
#include <algorithm>
#include <initializer_list>

#include <fmt/format.h>

#include "weft/base/text.h"
#include "weft/train/options.h"

namespace weft {
namespace {

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

}  // namespace

void add_foreign_flags(FlagTable& flags) {
  flags.section("Accepted from Megatron");
  accept_all(flags, {"--use-mcore-models", "--use-legacy-models"}, "Weft has one kind of model.");
  flags.accept("--transformer-impl", "NAME", "Weft has one implementation.");
  flags.accept("--attention-backend", "NAME", "Attention never holds a score matrix.");
  accept_all(flags, {"--use-flash-attn"}, "Attention never holds a score matrix.");
  accept_all(flags, {"--attention-softmax-in-fp32"}, "Softmax is always computed in float, or double with --fp64.");
  accept_all(flags,
             {"--no-gradient-accumulation-fusion", "--no-masked-softmax-fusion", "--no-bias-swiglu-fusion",
              "--no-bias-gelu-fusion", "--no-bias-dropout-fusion", "--no-rope-fusion", "--no-persist-layer-norm",
              "--cross-entropy-loss-fusion", "--moe-grouped-gemm", "--moe-permute-fusion", "--moe-router-fusion"},
             "How operations are fused is up to the device; results do not depend on it.");
  accept_all(flags, {"--accumulate-allreduce-grads-in-fp32"}, "Gradients are always added up in float, or double.");
  accept_all(flags, {"--manual-gc"}, "There is no garbage collector.");
  accept_all(flags, {"--manual-gc-interval"}, "There is no garbage collector.", "N");
  accept_all(flags, {"--num-workers"}, "Samples are computed where they are needed; no workers load them.", "N");
  accept_all(flags, {"--no-create-attention-mask-in-dataloader"}, "There are no mask tensors.");
  accept_all(flags, {"--multi-latent-attention"}, "Which layers have it is said by --pattern: +.");
  accept_all(flags, {"--log-throughput"}, "Throughput is always logged.");
  accept_all(flags, {"--no-position-embedding"}, "There are no learned positions.");
  accept_all(flags, {"--initial-loss-scale", "--min-loss-scale", "--loss-scale-window", "--hysteresis"},
             "Only fp16 scales its loss, which Weft does not do.", "X");
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

  flags.section("Refused from Megatron");
  refuse_all(flags, {"--fp16"}, "Weft does not train in fp16, whose range needs loss scaling; use --bf16");
  refuse_all(flags, {"--loss-scale"}, "no precision of Weft needs a loss scale; leave it out", "X");
  refuse_all(flags, {"--fp8-format", "--fp8-recipe"}, "Weft has no fp8 yet; use --bf16", "NAME");
  refuse_all(flags, {"--init-method-xavier-uniform"}, "weights start normal; set --init-method-std");
  refuse_all(flags, {"--no-check-for-nan-in-loss-and-grad"}, "a NaN always stops the run; leave it out");
  for (const char* name : {"--rampup-batch-size", "--step-batch-size-schedule"})
    flags.refuse(name, "TEXT", "the batch cannot grow yet; set --global-batch-size").takes_many();
  refuse_all(flags, {"--decoupled-lr", "--decoupled-min-lr"}, "all parameters have one learning rate; set --lr", "X");
  refuse_all(flags, {"--mtp-num-layers"}, "say it in the pattern: one /[*E] behind the main part for each depth", "N");
}

}  // namespace weft
