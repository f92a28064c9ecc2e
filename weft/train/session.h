// A model on one rank, ready to train: its module, plans and memory.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "weft/comm/world.h"
#include "weft/data/token_source.h"
#include "weft/device/device.h"
#include "weft/execute/executor.h"
#include "weft/execute/prepared_plan.h"
#include "weft/execute/step_plan.h"
#include "weft/execute/stream_memory.h"
#include "weft/grid/layout.h"

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
  Layout layout;                       // of all ranks, seen from this one
  std::int64_t batch = 1, length = 1;  // of one micro-batch
  PlanOptions plan;                    // of the training plan; kind `gradients`: no updates (probe)
  AdamOptions adam;
  int threads = 1;
  std::int64_t logits_slice_bytes = 128 << 20;
  bool repeatable_attention = true;
  bool validates = false, samples = false;  // memory for evaluate() and for logits() is counted, too
  RankOptions ranks;
  InjectedFault fault;  // of the training plan, on one rank

  bool updates() const { return plan.kind == PlanKind::train; }
};

StepOptions training_step(const SessionOptions& options);

// A plan that trains nothing. keep_logits: it writes the logits.
struct EvaluationShape {
  std::int64_t batch = 1, length = 1;
  bool keep_logits = false;
  bool operator==(const EvaluationShape&) const = default;
};
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
};

class Session {
 public:
  Session(Device& device, const SessionOptions& options);
  ~Session();

  // Values of a parameter, by identity, in its logical shape.
  using ParameterSource = std::function<void(const ParameterPart& part, double* values)>;
  void set_parameters(const ParameterSource& source);
  void initialise_parameters(std::uint64_t seed);
  using ParameterSink = std::function<void(const ParameterPart& part, std::span<const double> values)>;
  void each_parameter(const ParameterSink& sink);
  std::vector<double> parameter_values(std::size_t tensor);  // of module().parameters; what training works with
  void each_gradient(const ParameterSink& sink);             // as the last step left them, before clipping

  // One step over this rank's micro_batches batches. decay is the weight decay's coefficient. With several ranks every
  // call below is made by all of them, and results are those of all.
  StepResult step(std::span<const MicroBatch> batches, double learning_rate, double decay);
  // Where steps leave their updates to the next one: runs those of the last step. All that reads or sets weights here
  // does it first; after a step it is for who reads them through storage(), and for the end of a run.
  void flush_updates();
  // Without updates: gradients of the mean loss.
  StepResult gradients(std::span<const MicroBatch> batches);
  // Mean loss of one batch of the training shape; nothing is kept.
  double evaluate(const MicroBatch& batch);
  StepResult evaluate_losses(const MicroBatch& batch);  // with those of the MTP depths
  // Logits [tokens, embedding rows] of one sequence of any length up to `length`, as doubles.
  std::vector<double> logits(std::span<const std::int32_t> tokens);
  // The same for a whole batch of the training shape: [batch * length, embedding rows].
  std::vector<double> batch_logits(const MicroBatch& batch);

  const Module& module() const { return module_; }
  const PreparedPlan& plan() const { return *train_; }
  Executor* executor() { return executor_.get(); }  // null: serial
  const SessionOptions& options() const { return options_; }
  Device& device() { return device_; }
  Stream& stream() { return *stream_; }
  const ModelStorage& storage() const { return *storage_; }
  std::int64_t steps_taken() const { return steps_; }
  const MemoryNeed& memory_need() const { return need_; }
  // Bytes that libraries hold beside the plan's memory: the growth of the process while one micro-batch runs forward
  // and backward for the first time, on zero tokens. Leaves no trace in weights or states.
  std::int64_t measure_library_bytes();
  // The same number of words from every rank of this one's expert group, in the order of ranks.
  std::vector<std::int64_t> gather_from_expert_ranks(std::span<const std::int64_t> words);
  std::vector<std::int64_t> gather_from_all_ranks(std::span<const std::int64_t> words);
  // values of the expert group's rank `from` become those of all its ranks.
  void broadcast_to_expert_ranks(int from, std::span<double> values);

 private:
  std::vector<std::int64_t> gather(Communicator& group, std::span<const std::int64_t> words);
  std::byte* exchange_memory(std::size_t bytes);
  struct Evaluation {
    Module module;
    std::unique_ptr<PreparedPlan> plan;
  };
  std::unique_ptr<PreparedPlan> prepare(const Module& module, Plan plan, const MemoryPlan& memory);
  std::int64_t make_groups(const Plan& plan);
  void wait_for_all_ranks(const std::string& what);
  void check_all_ranks(const PreparedPlan& plan);
  void run_training_plan();
  void forget_updates();
  Evaluation& evaluation(const EvaluationShape& shape);
  // Writes all that a step of the plan reads from the host.
  void feed(const PreparedPlan& plan, const Module& module, std::span<const MicroBatch> batches, double learning_rate,
            double decay);
  std::int64_t data_ranks() const { return options_.layout.size_of(options_.layout.data_ranks()); }
  double mtp_factor(const Module& module) const;  // of one depth's mean loss in the sum that is trained
  std::vector<double> read_mtp_losses(const PreparedPlan& plan, const Module& module);
  void write_step_values(std::span<double> values, double learning_rate, double decay, double loss_scale) const;
  std::vector<ValueId> step_results() const;
  StepResult evaluate_on(Evaluation& evaluation, const MicroBatch& batch);

  Device& device_;
  SessionOptions options_;
  std::unique_ptr<Stream> stream_;
  Module module_;
  MemoryNeed need_;
  std::unique_ptr<ModelStorage> storage_;
  std::vector<std::unique_ptr<Memory>> exchange_memory_;  // the last is in use
  std::unique_ptr<RankGroups> groups_;
  std::unique_ptr<PreparedPlan> train_;
  std::unique_ptr<Executor> executor_;
  std::vector<std::pair<EvaluationShape, std::unique_ptr<Evaluation>>> evaluations_;
  std::int64_t steps_ = 0;
  bool updates_left_ = false;  // by the last step, to the next
};

}  // namespace weft
