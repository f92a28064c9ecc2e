// A plan made ready to run: memory for every buffer, tensors for every use, constants computed. From then on a step
// allocates nothing.
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
  // Everything given must outlive this. groups: absent for a plan of one rank. UserError names the operations that the
  // plan needs and the device lacks.
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

  // Something goes wrong at a node from now on. world: of this rank, null for one rank; outlives this.
  void inject(const InjectedFault& fault, const World* world) {
    fault_ = fault;
    world_ = world;
  }

  // RunError naming the node when it fails; PeerError when another rank did. wait: also for queued work.
  void run_node(NodeId node, Stream& stream, bool wait = false) const;
  // Until all work queued there is done. PeerError when another rank has failed: what it did not send is not there, and a
  // device's stream that runs empty does not tell.
  void wait(Stream& stream) const {
    stream.synchronize();
    if (groups_) groups_->world().throw_if_ended();
  }
  void touch_memory() const { arena_->touch(); }

  // What the host gives to a step, to be written while none is under way: inputs, and step values that no node writes
  // (micro_batch -1). It lies in memory of the host, and a step begins with one copy of all of it to the device, queued by
  // who runs the step. So the host only writes and launches; and what is not written anew is what it was.
  std::span<std::int32_t> input_ints(ValueId value, int micro_batch) const;
  std::span<double> input_doubles(ValueId value, int micro_batch = -1) const;
  void queue_inputs(Stream& stream) const;
  // Values of the step that the host wants behind each: an executor queues their way to it with the step's work, so that
  // nobody waits a second time.
  void set_results(std::vector<ValueId> values) { results_ = std::move(values); }
  void queue_results(Stream& stream) const;
  std::vector<double> result(ValueId value) const;  // the last step's, once it is done
  // Other access between steps; both wait for the stream. write: f64, a step value that nodes write.
  Tensor tensor(ValueId value, int micro_batch = -1) const;
  void write(Stream& stream, ValueId value, std::span<const double> values) const;
  std::vector<double> read(Stream& stream, ValueId value, int micro_batch = -1) const;
  // Bytes of the arena in use at most so far: the end of the furthest buffer that a node has touched.
  std::int64_t arena_high_water() const { return high_water_.load(); }

 private:
  void run(NodeId id, Stream& stream) const;
  void reserve_counts();
  void wait_for_counts(const Node& node, Stream& stream) const;
  void communicate(const Node& node, Stream& stream, bool wrong_counts) const;
  void exchange(Communicator& comm, Lane lane, const NodeCollective& c, Stream& stream, bool wrong_counts) const;
  std::span<std::byte> copied_counts(Lane lane) const;
  Tensor tensor_of(BufferId buffer) const { return tensors_[buffer.index()]; }
  BufferId buffer(ValueId value, int micro_batch) const;
  template <class T>
  std::span<T> input(ValueId value, int micro_batch, DType dtype) const;
  std::byte* result_memory(ValueId value) const;

  const Module& module_;
  Plan plan_;
  MemoryPlan memory_;
  Device& device_;
  std::unique_ptr<Memory> arena_;
  std::unique_ptr<Memory> host_;  // the host's image of the arena's beginning: inputs and step values
  std::vector<ValueId> results_;
  const RankGroups* groups_;
  std::vector<std::int64_t> counts_;                                          // buffers of the host's memory
  std::unique_ptr<Memory> counts_memory_;                                     // where counts arrive from the device
  std::array<std::span<std::byte>, lane_count> copied_counts_;                // its parts, by lane
  mutable std::array<std::vector<std::int64_t>, lane_count> element_counts_;  // of the exchange that the lane makes
  mutable std::array<std::vector<Transfer>, lane_count> transfers_;           // that a lane makes at once
  std::vector<Tensor> tensors_;                                               // by buffer
  std::vector<Tensor> bound_;                                                 // by use
  std::vector<BufferId> lookup_;  // (micro_batch + 1) * values + value -> buffer
  mutable std::atomic<std::int64_t> high_water_ = 0;
  InjectedFault fault_;
  const World* world_ = nullptr;
};

// Runs `queue` and waits for what it has queued, also where it fails halfway: work uses memory of the caller.
void run_to_the_end(Stream& stream, const std::function<void()>& queue);

// Runs one node after another, in the order of the list: the oracle. Results are on the host in the end.
void run_serially(const PreparedPlan& plan, Stream& stream);

}  // namespace weft
