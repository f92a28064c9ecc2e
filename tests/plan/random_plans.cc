#include "tests/plan/random_plans.h"

#include <fmt/format.h>

#include "tests/plan/in_segments.h"
#include "tests/plan/plans.h"

namespace weft {

namespace {

// Items of a part. All its attention is of one kind (`+` and `D` count as one), and so are its recurrent layers.
std::string random_items(Dice& dice, int most, bool segments) {
  const bool latent = dice.below(3) == 0;
  const char recurrent = dice.of({'M', 'G'});
  const auto mixer = [&] { return dice.below(3) == 0 ? recurrent : latent ? dice.of({'+', 'D'}) : '*'; };
  std::string pattern;
  const int items = dice.between(1, most);
  for (int i = 0; i < items; ++i) {
    if (segments && i > 0 && dice.below(8) == 0) pattern += '|';
    if (dice.below(3) == 0) {
      pattern += '[';
      const int symbols = dice.between(1, 2);
      for (int s = 0; s < symbols; ++s) pattern += dice.yes() ? mixer() : '-';
      pattern += dice.of({'E', 'E', '-', mixer()});
      pattern += ']';
    } else {
      pattern += dice.of({mixer(), '-', 'E', 'E'});
    }
  }
  return pattern;
}

std::string random_pattern(Dice& dice) {
  std::string pattern = random_items(dice, 5, true);
  if (dice.below(5) > 0) return pattern;
  const std::string mtp = "/" + random_items(dice, 2, false);
  return pattern + mtp + (dice.yes() ? mtp : "");
}

// How the parameters are divided, under the strategy of `c`.
void divide(RandomCase& c, Dice& dice) {
  c.options.gather_by_piece = dice.yes();
  c.options.two_buffers = dice.below(4) == 0;
  c.options.gather_ahead = dice.of<std::int64_t>({-1, 0, 100, 10000});
  if (c.expert_shards > 1 && dice.yes()) c.instances = 2;
  c.over_instances = c.sharding == ShardingStrategy::optim_grads_params && dice.yes();
}

}  // namespace

RandomCase random_case(std::uint64_t seed, bool any_kind) {
  Dice dice(seed, "case");
  RandomCase c;
  c.pattern = random_pattern(dice);
  c.expert_ranks = dice.of({1, 2, 2, 4});
  c.expert_shards = dice.of({1, 2, 2, 4});
  c.options.micro_batches = dice.between(1, 4);
  c.options.weave = dice.below(3) > 0;
  c.options.delay_weight_gradients = dice.yes();
  c.dtype = dice.of({DType::f32, DType::f64, DType::bf16});
  c.experts = dice.of<std::int64_t>({4, 8});
  c.k = dice.between(1, 3);
  c.shared = dice.yes();
  c.tied = dice.below(4) == 0;
  c.bias = dice.below(4) == 0;
  c.balance = dice.below(6);
  c.options.early_attention_backward = dice.below(4) == 0;
  if (c.ranks() == 1 && !c.options.weave) c.options.block = dice.between(1, 3);
  if (any_kind) {
    c.options.kind =
        dice.of({PlanKind::train, PlanKind::train, PlanKind::train, PlanKind::gradients, PlanKind::evaluate});
    c.options.overlap_updates = dice.below(3) == 0;
    c.clips = dice.yes();
    using enum ShardingStrategy;
    if (c.options.kind != PlanKind::gradients)
      c.sharding = dice.of({no_shard, no_shard, optim, optim_grads, optim_grads_params, optim_grads_params});
    divide(c, dice);
  }
  c.options.overlap_dispatch_backward = dice.yes();
  using enum Recomputation::Kind;
  c.options.recomputation = {dice.of({none, uniform, block, modules}), dice.between(1, 3)};
  c.options.recomputation.modules = static_cast<RecomputeModules>(dice.between(1, (1 << recompute_module_count) - 1));
  return c;
}

RandomCase random_staged_case(std::uint64_t seed, bool any_kind) {
  RandomCase c = random_case(seed, any_kind);
  Dice dice(seed, "stages");
  c.stages = dice.of({2, 2, 3, 4});
  const int chunks = dice.of({1, 1, 2, 3});
  c.pattern = in_segments(c.pattern, c.stages * chunks, dice);
  c.options.block = 1;
  c.options.micro_batches = dice.between(1, 9);
  using enum OrderKind;
  if (chunks == 1) c.options.order = dice.of({automatic, one_f_one_b, zero_bubble, zero_bubble});
  if (chunks > 1 && dice.yes()) c.options.micro_batch_group = dice.between(c.stages, c.stages + 2);
  if (dice.below(3) > 0 || c.expert_shards * c.expert_ranks == 1 || c.instances > 1) return c;
  c.tensor_ranks = 2;
  c.sequence = dice.yes();
  return c;
}

RandomCase random_divided_case(std::uint64_t seed) {
  RandomCase c = random_case(seed);
  Dice dice(seed, "division");
  if (c.ranks() == 1) c.expert_shards = 2;
  c.options.block = 1;
  c.options.overlap_updates = dice.yes();
  c.clips = dice.below(4) > 0;
  using enum ShardingStrategy;
  c.sharding = dice.of({optim, optim_grads, optim_grads_params, optim_grads_params});
  divide(c, dice);
  if (c.ranks() == c.instances && !c.over_instances) c.instances = 1;  // each rank would hold all of an instance
  return c;
}

RandomCase random_tensor_case(std::uint64_t seed) {
  RandomCase c = random_case(seed);
  Dice dice(seed, "tensor");
  c.expert_tensor_ranks = dice.of({1, 1, 2});
  if (c.ranks() == 1) c.expert_shards = 2;
  c.tensor_ranks = dice.yes() && c.ranks() >= 4 ? 4 : 2;
  c.sequence = dice.yes();
  c.options.block = 1;
  c.options.overlap_updates = dice.yes();
  using enum ShardingStrategy;
  c.sharding = dice.of({no_shard, no_shard, optim, optim_grads, optim_grads_params});
  c.options.gather_by_piece = dice.yes();
  return c;
}

std::string RandomCase::text() const {
  return fmt::format(
      "pattern {} pp {} order {} {} ep {} edp {} etp {} tp {}{} micro-batches {}{}{}{} {} experts {} k {}{}{}{} "
      "balance {} block "
      "{}{}{}{} kind {} "
      "{}{}{} "
      "ahead {} instances {}{} recomputed {} {} {}",
      pattern, stages, name_of(options.order), options.micro_batch_group, expert_ranks, expert_shards,
      expert_tensor_ranks, tensor_ranks, sequence ? " tokens too" : "", options.micro_batches,
      options.weave ? " woven" : "", options.delay_weight_gradients ? " delayed" : "",
      options.overlap_dispatch_backward ? " dispatch first" : "", name_of(dtype), experts, k, shared ? " shared" : "",
      tied ? " tied" : "", bias ? " bias" : "", balance, options.block,
      options.early_attention_backward ? " early" : "", options.overlap_updates ? " late updates" : "",
      clips ? "" : " no norm", static_cast<int>(options.kind), name_of(sharding),
      options.gather_by_piece ? " by piece" : "", options.two_buffers ? " two buffers" : "", options.gather_ahead,
      instances, over_instances ? " divided" : "", static_cast<int>(options.recomputation.kind),
      options.recomputation.items, options.recomputation.modules);
}

namespace {

void keep_busy(ExpertsSpec& spec, int way) {
  BalanceSpec& b = spec.balance;
  if (way == 1) b.aux_loss = b.z_loss = 0.01;
  if (way == 2) b.sequence_aux_loss = 0.01;
  if (way == 2) b.capacity_factor = 1.5;
  if (way >= 3) b.global_aux_loss = 0.01;
  if (way < 4) return;
  spec.router.score = RouterSpec::Score::sigmoid;
  spec.router.choose_first = false;
  spec.router.normalise = true;
  spec.expert_bias = true;
  b.bias_update_rate = 1e-3;
}

}  // namespace

StepOptions options_of(const RandomCase& c) {
  StepOptions options;
  ModelConfig& config = options.config;
  config = small_config(c.pattern);
  config.experts.experts = c.experts;
  config.experts.router.k = c.k;
  config.experts.shared_ffn = c.shared ? 4 : 0;
  keep_busy(config.experts, c.balance);
  config.tied_embeddings = c.tied;
  config.attention.qkv_bias = config.mlp.bias = c.bias;
  options.module.precision.compute = c.dtype;
  options.module.batch = 2;
  options.module.length = 3;
  options.module.sequence_parallel = c.sequence;
  if (c.tensor_ranks > 1) {
    options.module.length = 4;
    options.module.logits_slice_bytes = 200;
    config.attention.heads = config.latent_attention.heads = config.mamba.heads = config.delta_net.heads = 4;
    config.attention.kv_heads = config.mamba.groups = config.delta_net.key_heads = 4;
    if (c.tied) config.attention.kv_heads = 2;
  }
  options.module.layout = c.layout();
  options.module.sharding = c.sharding;
  options.module.shard_over_instances = c.over_instances;
  if (!c.clips) options.optimizer.clip = 0;
  options.plan = c.options;
  return options;
}

StepPlan step_of(const RandomCase& c) { return plan_step(options_of(c)); }

}  // namespace weft
