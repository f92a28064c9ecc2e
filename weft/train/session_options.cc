// The options of a session, from those of a run.
#include <algorithm>
#include <cstdlib>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/comm/neighbours.h"
#include "weft/train/trainer.h"

namespace weft {

std::optional<int> update_processors() {
  const char* text = std::getenv("WEFT_UPDATE_PROCESSORS");
  if (text == nullptr) return {};
  std::int64_t wanted = 0;
  if (!parse_int(text, wanted) || wanted < 0 || wanted > INT32_MAX)
    throw UserError("WEFT_UPDATE_PROCESSORS={} is not a number of processors: give 0 for no division, or unset it",
                    text);
  return static_cast<int>(wanted);
}

SessionOptions session_options(const TrainOptions& o, const ModelConfig& config, World* world) {
  SessionOptions s;
  s.ranks.world = world;
  const std::int64_t tensor = o.layout.tensor_model_parallel_size, stages = o.layout.pipeline_model_parallel_size;
  const std::int64_t context = o.layout.context_parallel_size;
  s.sequence_parallel = o.layout.sequence_parallel;
  s.context_transfers = context_transfers(o);
  s.layout = Layout::of({.tp = tensor,
                         .cp = context,
                         .dp = (world ? world->size() : o.layout.ranks) / (tensor * context * stages),
                         .pp = stages,
                         .etp = o.layout.expert_tensor_parallel_size,
                         .ep = o.layout.expert_model_parallel_size,
                         .instances = o.sharding.num_distributed_optimizer_instances,
                         .cp_heads = context_head_ranks(o),
                         .stages_before_data = o.layout.use_tp_pp_dp_mapping},
                        world ? world->rank() : RankId(0));
  s.split = split_options(o, config.pattern);
  s.plan.order = o.execution.pipeline_order;
  s.plan.micro_batch_group = static_cast<int>(o.layout.microbatch_group_size_per_virtual_pipeline_stage);
  s.plan.weave = o.execution.overlap_moe_expert_parallel_comm;
  s.plan.early_attention_backward = o.execution.ep_overlap_early_attn_memory_release;
  s.plan.delay_weight_gradients = o.execution.delay_wgrad_compute;
  s.plan.overlap_dispatch_backward = o.execution.overlap_dispatch_backward_with_experts_wgrad;
  s.plan.recomputation = recomputation_of(o.recompute);
  s.plan.overlap_updates = o.execution.overlap_optimizer;
  s.ranks.parallel = o.execution.executor == ExecutorKind::parallel;
  s.ranks.executor.graph = o.execution.cuda_graph == GraphKind::full;
  s.ranks.executor.update_processors = update_processors();
  s.repeatable_attention = o.execution.attention_backward == AttentionBackwardKind::deterministic;
  s.sharding = strategy_of(o);
  s.shard_over_instances =
      o.sharding.outer_strategy == ShardingStrategy::optim && o.sharding.num_distributed_optimizer_instances > 1;
  s.plan.gather_by_piece = o.sharding.fine_grained_param_gather;
  if (o.sharding.suggested_communication_unit_size > 0)
    s.plan.gather_ahead = o.sharding.suggested_communication_unit_size / 2;
  s.plan.two_buffers = o.sharding.fsdp_double_buffer;
  s.config = config;
  s.precision = precision_of(o);
  s.batch = o.batch.micro_batch_size;
  s.per_token_loss = o.batch.calculate_per_token_loss;
  s.length = o.batch.seq_length;
  s.packing = {o.data.reset_attention_mask, o.data.reset_position_ids};
  s.plan.micro_batches = static_cast<int>(micro_batches(o));
  s.plan.block = static_cast<int>(o.execution.block);
  if (!o.execution.inject_fault.empty()) s.fault = parse_fault(o.execution.inject_fault);
  s.optimizer = optimizer_spec(o.optimizer);
  // Thread ranks share the process's cores.
  const std::int64_t threads = o.execution.threads > 0 ? o.execution.threads : usable_core_count();
  const std::int64_t here = o.layout.launched_ranks > 1 ? 1 : o.layout.ranks;
  s.threads = static_cast<int>(std::max<std::int64_t>(1, threads / std::max<std::int64_t>(here, 1)));
  return s;
}

}  // namespace weft
