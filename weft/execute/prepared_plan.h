// A plan made ready to run: memory for every buffer, tensors for every use, constants computed. Steps allocate nothing.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <span>

#include "weft/device/device.h"
#include "weft/execute/injected_fault.h"
#include "weft/execute/rank_groups.h"
#include "weft/execute/storage.h"
#include "weft/plan/memory.h"
#include "weft/plan/plan.h"

namespace weft {

class PreparedPlan {
 public:
  // All references must outlive this. groups: null for a plan of one rank. UserError names the operations that the plan
  // needs and the device lacks.
  PreparedPlan(const Module& module, Plan plan, MemoryPlan memory, Device& device, const ModelStorage& storage,
               Stream& stream, const RankGroups* groups = nullptr);
  PreparedPlan(const Module& module, const Plan& plan, Device& device, const ModelStorage& storage, Stream& stream,
               const RankGroups* groups = nullptr)
      : PreparedPlan(module, plan, plan_memory(plan), device, storage, stream, groups) {}

  const Plan& plan() const { return plan_; }
  const MemoryPlan& memory() const { return memory_; }
  const Module& module() const { return module_; }
  // The communicators of its collectives, each once.
  std::vector<Communicator*> communicators() const {
    return groups_ ? groups_->used_by(plan_) : std::vector<Communicator*>{};
  }

  // From now on the fault occurs at its node. world: of this rank, null for one rank; outlives this.
  void inject(const InjectedFault& fault, const World* world) {
    fault_ = fault;
    world_ = world;
  }

  // A step begins. What it has changed of weights and states is counted from here.
  void begin_step();
  // A step that has failed may have left them as the step before made them, where nodes run as they are told to (not on a
  // device that queues its work). nothing: not even what the step before has left to this one is done. carried: that alone is.
  enum class Changed : unsigned char { nothing, carried, some };
  Changed changed() const;

  // RunError naming the node when it fails; PeerError when another rank did. wait: also for queued work.
  void run_node(NodeId node, Stream& stream, bool wait = false) const;
  // Waits for all work queued on the stream. PeerError when another rank has failed: its data is missing, and the
  // stream itself reports no error.
  void wait(Stream& stream) const {
    stream.synchronize();
    if (groups_) groups_->world().throw_if_ended();
  }
  void touch_memory() const { arena_->touch(); }

  // What the host provides to a step, written while none is running: inputs, and step values that no node writes
  // (micro_batch -1). It is in host memory; a step begins with one copy of all of it to the device, queued by whoever
  // runs the step. Values that are not rewritten keep their contents.
  bool uses(ValueId value, int micro_batch = -1) const;  // false for an invalid value, too
  std::span<std::int32_t> input_ints(ValueId value, int micro_batch) const;
  std::span<double> input_doubles(ValueId value, int micro_batch = -1) const;
  void queue_inputs(Stream& stream) const;
  // Step values that the host reads after each step. An executor queues the copies to the host with the step's work, so
  // that reading them needs no second wait.
  void set_results(std::vector<ValueId> values) { results_ = std::move(values); }
  void queue_results(Stream& stream) const;
  std::vector<double> result(ValueId value) const;  // the last step's, once it is done
  // Other access between steps; `write` and `read` wait for the stream. write: f64, a step value that nodes write.
  Tensor tensor(ValueId value, int micro_batch = -1) const;
  void write(Stream& stream, ValueId value, std::span<const double> values) const;
  std::vector<double> read(Stream& stream, ValueId value, int micro_batch = -1) const;
  // Most bytes of the arena in use so far: the end of the furthest buffer that a node has touched.
  std::int64_t arena_high_water() const { return high_water_.load(); }

 private:
  void run(NodeId id, Stream& stream) const;
  void reserve_counts();
  void find_changes();
  void wait_for_counts(const Node& node, Stream& stream) const;
  void communicate(const Node& node, Stream& stream, bool wrong_counts) const;
  void exchange(Communicator& comm, Lane lane, const NodeCollective& c, Stream& stream, bool wrong_counts) const;
  std::span<std::byte> copied_counts(Lane lane) const;
  Tensor tensor_of(BufferId buffer) const { return tensors_[buffer.index()]; }
  Tensor room_of(BufferId buffer) const;  // all of its memory, flat
  void accumulate(const Node& node, Stream& stream) const;
  BufferId buffer(ValueId value, int micro_batch) const;
  template <class T>
  std::span<T> input(ValueId value, int micro_batch, DType dtype) const;
  std::byte* result_memory(ValueId value) const;

  const Module& module_;
  Plan plan_;
  MemoryPlan memory_;
  Device& device_;
  std::unique_ptr<Memory> arena_;
  std::unique_ptr<Memory> host_;  // host copy of the arena's beginning: inputs and step values
  std::vector<ValueId> results_;
  const RankGroups* groups_;
  std::vector<std::int64_t> counts_;                                          // buffers in host memory
  std::unique_ptr<Memory> counts_memory_;                                     // where counts arrive from the device
  std::array<std::span<std::byte>, lane_count> copied_counts_;                // its parts, by lane
  mutable std::array<std::vector<std::int64_t>, lane_count> element_counts_;  // of the lane's current exchange
  mutable std::array<std::vector<Transfer>, lane_count> transfers_;           // that a lane makes together
  std::vector<Tensor> tensors_;                                               // by buffer
  std::vector<Tensor> bound_;                                                 // by use
  std::vector<BufferId> lookup_;  // (micro_batch + 1) * values + value -> buffer
  mutable std::atomic<std::int64_t> high_water_ = 0;
  enum class Change : unsigned char { none, own, carried };
  std::vector<Change> changes_;                                                    // of weights and states, by node
  int carried_ = 0;                                                                // nodes
  mutable std::atomic<int> own_begun_ = 0, carried_begun_ = 0, carried_done_ = 0;  // in this step
  std::int64_t step_ = 0;
  InjectedFault fault_;
  mutable std::atomic<bool> struck_ = false;
  const World* world_ = nullptr;
};

// Runs `queue` and waits for what it queued, even if it fails halfway: the work uses memory of the caller.
void run_to_the_end(Stream& stream, const std::function<void()>& queue);

// Runs one node after another, in list order: the oracle. Afterwards the results are on the host.
void run_serially(const PreparedPlan& plan, Stream& stream);

}  // namespace weft
