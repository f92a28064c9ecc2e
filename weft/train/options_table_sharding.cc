#include <fmt/format.h>

#include "weft/train/options.h"

namespace weft {

void add_sharding_flags(FlagTable& flags, ShardingOptions& sharding) {
  flags.section("Sharding");
  flags
      .choice("--data-parallel-sharding-strategy", sharding.strategy,
              {{"no_shard", ShardingStrategy::no_shard},
               {"optim", ShardingStrategy::optim},
               {"optim_grads", ShardingStrategy::optim_grads},
               {"optim_grads_params", ShardingStrategy::optim_grads_params}},
              "What is divided over the ranks that hold the same parameters: nothing, optimizer state, also gradients, "
              "also weights.")
      .standard("optim_grads_params with --use-megatron-fsdp, optim with --use-distributed-optimizer, else no_shard");
  flags.add("--use-distributed-optimizer", sharding.use_distributed_optimizer,
            "Divide optimizer state over data-parallel ranks: strategy optim.");
  flags.add("--use-megatron-fsdp", sharding.use_megatron_fsdp,
            "Divide weights, gradients and optimizer state over data-parallel ranks: strategy optim_grads_params.");
  flags
      .add("--suggested-communication-unit-size", sharding.suggested_communication_unit_size, "N",
           "Where weights are divided: half of so many elements may be gathered before they are used, or those of one "
           "piece.")
      .at_least(1)
      .standard("twice those of the mean unit");
  flags.add(
      "--fsdp-double-buffer", sharding.fsdp_double_buffer,
      "Where weights are divided: gather ahead by units, at most two of the forward pass and two of the backward pass "
      "at a time.");
  flags
      .add("--megatron-fsdp-enable-fine-grained-param-gather", sharding.fine_grained_param_gather,
           "Gather the weights of each piece of a unit when the piece needs them; otherwise all weights of a unit at "
           "once.")
      .no_form();
  flags.choice(
      "--megatron-fsdp-main-grads-dtype", sharding.main_grads_dtype,
      {{"auto", GradientType::automatic}, {"fp32", GradientType::fp32}, {"bf16", GradientType::bf16}},
      "Type in which divided gradients of matrices are kept. auto: bf16 with --grad-reduce-in-bf16, else fp32.");
  flags.choice("--megatron-fsdp-grad-comm-dtype", sharding.grad_comm_dtype,
               {{"auto", GradientType::automatic}, {"fp32", GradientType::fp32}, {"bf16", GradientType::bf16}},
               "Type in which a micro-batch's gradients of matrices travel. auto: bf16 with --grad-reduce-in-bf16, "
               "else that in which they are kept.");
  flags
      .add(
          "--num-distributed-optimizer-instances", sharding.num_distributed_optimizer_instances, "N",
          "Cut the data-parallel ranks into N groups of neighbours, each of which divides what all would hold. What is "
          "gathered and reduced for every micro-batch stays within a group; gradients are summed over the groups once "
          "per step.")
      .at_least(1)
      .limited_to(1 << 20);
  flags.choice("--outer-dp-sharding-strategy", sharding.outer_strategy,
               {{"no_shard", ShardingStrategy::no_shard}, {"optim", ShardingStrategy::optim}},
               "What these groups divide among each other: nothing, or also the parts of their ranks, which are then "
               "gathered once per step.");
}

ShardingStrategy strategy_of(const TrainOptions& options) {
  const ShardingOptions& s = options.sharding;
  if (s.strategy) return *s.strategy;
  if (s.use_megatron_fsdp) return ShardingStrategy::optim_grads_params;
  return s.use_distributed_optimizer ? ShardingStrategy::optim : ShardingStrategy::no_shard;
}

std::vector<std::string> sharding_notes(const TrainOptions& options) {
  const ShardingStrategy strategy = strategy_of(options);
  const LayoutOptions& layout = options.layout;
  if (strategy == ShardingStrategy::no_shard) return {};
  const std::int64_t instances = options.sharding.num_distributed_optimizer_instances;
  const bool outer = options.sharding.outer_strategy == ShardingStrategy::optim;
  // Over so many ranks a parameter is divided that tensor ranks do not hold as a whole.
  const std::int64_t tensor = layout.tensor_model_parallel_size,
                     copies = layout.data_parallel_size() * layout.context_parallel_size,
                     expert_copies =
                         copies * tensor / (layout.expert_model_parallel_size * layout.expert_tensor_parallel_size),
                     divided = outer ? copies : copies / instances,
                     experts_divided = outer ? expert_copies : expert_copies / instances;
  const auto note = [&](const std::string& what) {
    return fmt::format("sharding strategy {}: {}", name_of(strategy), what);
  };
  if (layout.ranks == 1) return {note("there is one rank, so nothing is divided")};
  std::vector<std::string> notes;
  if (outer && instances == 1)
    notes.push_back(
        "outer sharding strategy optim: there is one instance of the optimizer, so nothing more is divided");
  if (divided == 1 && experts_divided == 1)
    notes.push_back(note(
        fmt::format("{} one data-parallel rank, so {}", instances > 1 ? "an instance of the optimizer is" : "there is",
                    tensor > 1 ? "only what all tensor ranks hold is divided, among these" : "nothing is divided")));
  else if (experts_divided == 1)
    notes.push_back(note(fmt::format("every expert is on one rank only{}, so experts are not divided",
                                     instances > 1 && !outer ? " of an instance" : "")));
  return notes;
}

}  // namespace weft
