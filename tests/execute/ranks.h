// Runs a model on thread ranks for a few steps and returns everything it computed.
#pragma once

#include <functional>
#include <map>
#include <mutex>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/comm/local/cluster.h"
#include "weft/data/packed_documents.h"
#include "weft/device/cpu/device.h"
#include "weft/model/logical_parameters.h"
#include "weft/train/digest.h"
#include "weft/train/session.h"

namespace weft {

struct RankRun {
  std::vector<double> losses, norms;  // losses: of the model, and of its routers after it
  LogicalParameters parameters;       // of all ranks; replicas have been compared
  std::string digest;                 // of all ranks' weights, where a rank has parts of them only

  std::map<ParameterIdentity, std::vector<double>> weights() const {
    std::map<ParameterIdentity, std::vector<double>> weights;
    for (const ParameterIdentity& identity : parameters.identities()) weights[identity] = parameters.numbers(identity);
    return weights;
  }
};

struct RankCase {
  ModelConfig config;
  DType dtype = DType::f64;
  int ranks = 1, expert_ranks = 1, micro_batches = 2, steps = 3;
  int tensor_ranks = 1, expert_tensor_ranks = 1, context_ranks = 1;
  int head_ranks = 1;                               // of the context ranks, with a2a_p2p
  ContextTransfer transfer = ContextTransfer::a2a;  // of attention on context ranks
  bool sequence = false;                            // tensor ranks divide the tokens, too
  std::int64_t logits_slice_bytes = 128 << 20;
  std::int64_t batch = 1, length = 6;
  bool weave = false, delay = false, dispatch = false, parallel = false, early = false, overlap_updates = false;
  bool graph = true;  // where a device has them
  bool bf16_gradients = false, float_gradient_parts = false;
  OptimizerSpec optimizer;
  double clip = 1;  // of the optimizer; 0: none, and updates need not wait for a norm
  ShardingStrategy sharding = ShardingStrategy::no_shard;
  Recomputation recomputation;
  Packing packing;                                     // documents end with token 0
  bool per_token_loss = false, uneven_labels = false;  // samples have other numbers of labels that count
  bool gather_by_piece = true, two_buffers = false;
  int instances = 1;                   // of the optimizer
  int stages = 1, virtual_stages = 1;  // of the pipeline; virtual stages where the pattern has no pipes
  OrderKind order = OrderKind::automatic;
  bool shard_over_instances = false;
  InjectedFault fault;
  double timeout = 600;  // of waits, in seconds
  int block = 1;         // of the oracle: the number of data shards of the layout it is compared with
};

// A model of a few thousand weights.
inline RankCase small_case(const char* pattern) {
  RankCase c;
  c.config.pattern = pattern;
  c.config.hidden = 16;
  c.config.vocabulary = 23;
  c.config.attention = {.heads = 4, .kv_heads = 2, .head_dim = 4};
  c.config.mlp.ffn = 24;
  c.config.experts.experts = 4;
  c.config.experts.ffn = 12;
  c.config.experts.router.k = 2;
  c.config.mamba = {.heads = 4, .head_dim = 8, .groups = 2, .state = 6, .chunk = 4};
  c.config.delta_net = {.heads = 4, .key_heads = 2, .head_dim = 8, .key_dim = 6, .chunk = 4};
  c.config.init_std = 0.2;
  return c;
}

// Micro-batch m of shard r is sample m * shards + r of its step: the same tokens for every number of ranks.
inline MicroBatch batch_of(const RankCase& c, std::int64_t step, std::int64_t sample) {
  MicroBatch b;
  b.batch = c.batch;
  b.length = c.length;
  const std::uint64_t key = random_key(static_cast<std::uint64_t>(step * 1000 + sample), "tokens");
  const auto words = static_cast<std::uint64_t>(c.config.vocabulary);
  for (std::int64_t i = 0; i < b.batch * b.length; ++i) {
    b.tokens.push_back(static_cast<std::int32_t>(random_below(key, static_cast<std::uint64_t>(2 * i), words)));
    b.labels.push_back(static_cast<std::int32_t>(random_below(key, static_cast<std::uint64_t>(2 * i + 1), words)));
  }
  if (c.uneven_labels) std::fill_n(b.labels.begin(), static_cast<std::size_t>(sample % c.length), -1);
  mark_documents(b, 0, {.separate = c.packing.separate, .reset_positions = c.packing.reset_positions});
  return b;
}

inline SessionOptions options_of(const RankCase& c, World* world) {
  SessionOptions o;
  o.config = c.config;
  o.precision.compute = c.dtype;
  o.precision.bf16_gradients = c.bf16_gradients;
  o.precision.float_gradient_parts = c.float_gradient_parts;
  o.batch = c.batch;
  o.length = c.length;
  o.plan.micro_batches = c.micro_batches;
  o.plan.block = c.block;
  o.fault = c.fault;
  o.ranks.world = world;
  o.layout = Layout::of({.tp = c.tensor_ranks,
                         .cp = c.context_ranks,
                         .dp = (world ? world->size() : 1) / c.tensor_ranks / c.context_ranks / c.stages,
                         .pp = c.stages,
                         .etp = c.expert_tensor_ranks,
                         .ep = c.expert_ranks,
                         .instances = c.instances,
                         .cp_heads = c.transfer == ContextTransfer::a2a_p2p ? c.head_ranks : 1},
                        world ? world->rank() : RankId(0));
  o.sequence_parallel = c.sequence;
  o.context_transfers = {c.transfer};
  o.logits_slice_bytes = c.logits_slice_bytes;
  o.split.virtual_stages = c.virtual_stages;
  o.plan.order = c.order;
  o.plan.weave = c.weave;
  o.plan.delay_weight_gradients = c.delay;
  o.plan.overlap_dispatch_backward = c.dispatch;
  o.plan.early_attention_backward = c.early;
  o.ranks.parallel = c.parallel;
  o.ranks.executor.graph = c.graph;
  o.plan.recomputation = c.recomputation;
  o.packing = c.packing;
  o.per_token_loss = c.per_token_loss;
  o.plan.overlap_updates = c.overlap_updates;
  o.optimizer = c.optimizer;
  o.optimizer.clip = c.clip;
  o.sharding = c.sharding;
  o.shard_over_instances = c.shard_over_instances;
  o.plan.gather_by_piece = c.gather_by_piece;
  o.plan.two_buffers = c.two_buffers;
  return o;
}

// What one rank computes; losses and norms are those of all.
inline RankRun run_rank(const RankCase& c, World* world, Device& device) {
  RankRun result;
  const SessionOptions o = options_of(c, world);
  Session session(device, o);
  session.initialise_parameters(5);
  for (int step = 0; step < c.steps; ++step) {
    std::vector<MicroBatch> batches;
    for (int m = 0; m < c.micro_batches; ++m) batches.push_back(batch_of(c, step, o.layout.shard_of(m)));
    const StepResult r = session.step(batches, 1e-2, 0.1);
    result.losses.push_back(r.loss);
    if (r.gradient_norm) result.norms.push_back(*r.gradient_norm);
    result.losses.insert(result.losses.end(), r.router_losses.begin(), r.router_losses.end());
  }
  session.parameters().each(Content::weight, [&](const ParameterPart& part, const HostTensor& tensor) {
    WEFT_CHECK(result.parameters.add(part, tensor), "{} is there twice", to_text(part.identity));
  });
  if (c.sharding != ShardingStrategy::no_shard || c.tensor_ranks * c.expert_tensor_ranks > 1)
    result.digest = weight_digest(session);
  return result;
}

inline RankRun run_rank(const RankCase& c, World* world) {
  CpuDevice device;
  return run_rank(c, world, device);
}

// on_rank: what a rank's thread does; by default on the CPU.
using OnRank = std::function<RankRun(const RankCase&, World*)>;
inline RankRun run_ranks(
    const RankCase& c, const OnRank& on_rank = [](const RankCase& own, World* world) { return run_rank(own, world); }) {
  if (c.ranks == 1) return on_rank(c, nullptr);
  RankRun result;
  std::mutex mutex;
  LocalOptions local;
  local.timeout = c.timeout;
  LocalCluster cluster(c.ranks, local);
  cluster.run([&](World& world) {
    RankRun own = on_rank(c, &world);
    const std::lock_guard lock(mutex);
    WEFT_CHECK(own.parameters.add(result.parameters), "rank {} holds other bits than ranks before it",
               world.rank().value);
    result = std::move(own);
  });
  return result;
}

}  // namespace weft
