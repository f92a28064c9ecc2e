// A model on one rank, ready to train: its module, plans and memory.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "weft/comm/world.h"
#include "weft/data/token_source.h"
#include "weft/device/device.h"
#include "weft/execute/executor.h"
#include "weft/execute/model_parameters.h"
#include "weft/execute/prepared_plan.h"
#include "weft/execute/step_plan.h"
#include "weft/execute/stream_memory.h"
#include "weft/grid/layout.h"
#include "weft/train/evaluator.h"
#include "weft/train/rank_exchange.h"
#include "weft/train/step_inputs.h"

namespace weft {

// How a rank runs its plan.
struct RankOptions {
  World* world = nullptr;  // null: one rank
  bool parallel = false;   // lanes as threads, or as streams where a device queues its work
  ExecutorOptions executor;
  int on_device = 1;  // ranks that share this rank's device
};

struct SessionOptions {
  ModelConfig config;
  Precision precision;
  Layout layout;                                                         // of all ranks, seen from this one
  SplitOptions split;                                                    // of the layers over its stages
  bool sequence_parallel = false;                                        // of its tensor ranks
  std::vector<ContextTransfer> context_transfers{ContextTransfer::p2p};  // ModuleOptions
  std::int64_t batch = 1, length = 1;                                    // of one micro-batch
  PlanOptions plan;  // of the training plan; kind `gradients`: no updates (probe)
  OptimizerSpec optimizer;
  int threads = 1;
  Packing packing;
  std::int64_t logits_slice_bytes = 128 << 20;
  bool repeatable_attention = true;
  ShardingStrategy sharding = ShardingStrategy::no_shard;
  bool shard_over_instances = false;
  bool per_token_loss = false;              // every counted token of a step weighs the same, not every micro-batch
  bool validates = false, samples = false;  // memory for evaluate() and for logits() is counted, too
  RankOptions ranks;
  InjectedFault fault;  // of the training plan, on one rank

  bool updates() const { return plan.kind == PlanKind::train; }
};

StepOptions training_step(const SessionOptions& options);

StepOptions evaluation_step(const SessionOptions& options, const EvaluationShape& shape);

// What a run takes of a device's memory, in bytes.
struct MemoryNeed {
  MemoryPlan plan;
  std::int64_t evaluation = 0;     // of the plans that validate and sample; they share the weights
  StreamMemory streams;            // what operations work in
  std::int64_t library_bytes = 0;  // what the device's libraries take beside all that, about
  // What the communicators of a GPU's rank hold, measured. They are there before anybody asks what is free.
  std::int64_t communicators = 0;
  std::int64_t total() const {  // without communicators
    return plan.total() + evaluation + static_cast<std::int64_t>(streams.total()) + library_bytes;
  }
};

struct StepResult {
  double loss = 0;                      // mean over the step's tokens
  std::vector<double> mtp_losses = {};  // of each depth, the mean over the tokens that it predicts
  double indexer_loss = 0;              // of sparse attention's indexers, times its factor
  std::optional<double> gradient_norm;  // before clipping; not there without it
  bool finite = true;                   // false: weights were left as they were
  // By RouterLoss: the mean over micro-batches and layers, without coefficient; empty: there are none.
  std::vector<double> router_losses = {};
  std::vector<double> layer_losses = {};  // the same for each of Module::expert_layers
};

// With several ranks, every call that runs a plan or sets weights is made by all of them.
class Session {
 public:
  Session(Device& device, const SessionOptions& options);
  ~Session();

  // Training begins anew from these weights.
  void set_parameters(const ModelParameters::Source& source);
  void initialise_parameters(std::uint64_t seed);
  // Weights, moments and gradients on the host, with the updates of all steps done.
  const ModelParameters& parameters();

  // One step over this rank's micro_batches batches. decay is the weight decay's coefficient. Results are those of all
  // ranks.
  StepResult step(std::span<const MicroBatch> batches, double learning_rate, double decay);
  // After a step that threw: whether weights and the optimizer's state are still those that the step before made. Only one
  // rank alone can know it, and only on a device that does not queue its work.
  bool kept_by_failed_step();
  // Where steps leave their updates to the next one: runs those of the last step. Everything here that reads or sets
  // weights does it first. It is for the end of a run, and for whoever reads weights through storage().
  void flush_updates();
  // Without updates: gradients of the mean loss.
  StepResult gradients(std::span<const MicroBatch> batches);
  Evaluator& evaluator();

  const Module& module() const { return module_; }
  const PreparedPlan& plan() const { return *train_; }
  Executor* executor() { return executor_.get(); }  // null: serial
  const SessionOptions& options() const { return options_; }
  Device& device() { return device_; }
  Stream& stream() { return *stream_; }
  const ModelStorage& storage() const { return *storage_; }
  const StepInputs& inputs() const { return inputs_; }
  const RankExchange& ranks() const { return exchange_; }
  std::int64_t steps_taken() const { return steps_; }  // that moved weights
  // For a run that goes on: as many steps have been taken with these weights and moments.
  void set_steps_taken(std::int64_t steps) { steps_ = steps; }
  const MemoryNeed& memory_need() const { return need_; }

 private:
  std::unique_ptr<PreparedPlan> prepare(const Module& module, Plan plan, const MemoryPlan& memory,
                                        const StepOptions& made_from);
  std::unique_ptr<EvaluationPlan> make_evaluation(const EvaluationShape& shape);
  std::int64_t make_groups(const Plan& plan);
  void run_training_plan();
  void forget_updates();
  std::vector<ValueId> step_results() const;
  std::int64_t counted_on_all_ranks(std::span<const MicroBatch> batches) const;

  Device& device_;
  SessionOptions options_;
  std::unique_ptr<Stream> stream_;
  RankExchange exchange_;
  StepInputs inputs_;
  Module module_;
  MemoryNeed need_;
  std::unique_ptr<ModelStorage> storage_;
  std::unique_ptr<ModelParameters> parameters_;
  std::unique_ptr<RankGroups> groups_;
  std::unique_ptr<PreparedPlan> train_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Evaluator> evaluator_;
  std::int64_t steps_ = 0;
  bool updates_left_ = false;  // by the last step, to the next
};

}  // namespace weft
