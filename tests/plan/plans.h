// Small modules and plans for tests.
#pragma once

#include <string>

#include "weft/execute/step_plan.h"

namespace weft {

inline ModelConfig small_config(const std::string& pattern) {
  ModelConfig c;
  c.pattern = pattern;
  c.hidden = 8;
  c.vocabulary = 11;
  c.attention = {.heads = 2, .kv_heads = 1, .head_dim = 4};
  c.latent_attention = {.heads = 2, .q_rank = 5, .kv_rank = 6, .head_dim = 4, .rotary_dim = 2, .value_dim = 3};
  c.latent_attention.indexer = {.heads = 2, .dim = 4, .topk = 2};
  c.mamba = {.heads = 2, .head_dim = 3, .groups = 1, .state = 4, .chunk = 2};
  c.delta_net = {.heads = 2, .key_heads = 1, .head_dim = 3, .key_dim = 4, .chunk = 2};
  c.mlp.ffn = 12;
  c.experts.experts = 4;
  c.experts.ffn = 6;
  c.experts.router.k = 2;
  return c;
}

inline StepPlan small_step(const std::string& pattern, const PlanOptions& plan, const Layout& layout = {},
                           const OptimizerSpec& optimizer = {}, ShardingStrategy sharding = ShardingStrategy::no_shard,
                           bool shard_over_instances = false) {
  StepOptions options;
  options.config = small_config(pattern);
  options.module.batch = 2;
  options.module.length = 3;
  options.module.layout = layout;
  options.module.sharding = sharding;
  options.module.shard_over_instances = shard_over_instances;
  options.optimizer = optimizer;
  options.plan = plan;
  return plan_step(options);
}

inline Plan small_plan(const std::string& pattern, int micro_batches) {
  PlanOptions options;
  options.micro_batches = micro_batches;
  return small_step(pattern, options).plan;
}

}  // namespace weft
