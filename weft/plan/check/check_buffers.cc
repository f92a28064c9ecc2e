// The walk over the uses: the state of each buffer when a node reads, writes, adds to or reduces it.
#include <algorithm>
#include <map>
#include <set>

#include "weft/plan/check/faults.h"

namespace weft {

namespace {

// What the checker knows about a buffer during the walk.
struct BufferState {
  NodeId writer, reader, reducer, releaser;  // the last of each
  std::int32_t contributions = 0;
  StorageClass storage = StorageClass::activation;
  bool written = false;
  bool read = false;  // since it was written
};

class Walk {
 public:
  Walk(const Plan& plan, FaultList& faults)
      : plan_(plan), faults_(faults), states_(plan.buffers.size()), last_of_(plan.places.size() * phase_count) {
    for (std::size_t i = 0; i < states_.size(); ++i) {
      states_[i].storage = plan.value_of(buffer_id(i)).storage;
      states_[i].written = given(plan.value_of(buffer_id(i)));
      if (plan.value_of(buffer_id(i)).running) running_[plan.buffers[i].value].insert(plan.buffers[i].micro_batch);
    }
    for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
      const Node& node = plan.nodes[i];
      if (node.micro_batch >= 0) continue;
      for (const BufferUse& use : plan.uses_of(node))
        if (use.access == Access::write && states_[use.buffer.index()].storage == StorageClass::step &&
            !sum_into(plan, node, use.buffer))
          step_writers_.emplace(use.buffer, node_id(i));
    }
    next_compute_.resize(plan.nodes.size());
    auto next = static_cast<std::int32_t>(plan.nodes.size());
    for (std::size_t i = plan.nodes.size(); i-- > 0;) {
      next_compute_[i] = next;
      if (plan.nodes[i].lane == Lane::compute && plan.nodes[i].kind != NodeKind::release)
        next = static_cast<std::int32_t>(i);
    }
  }

  void run() {
    // What the step leaves to the next one comes at its end; check_carried checks it where it really runs.
    for (const bool carried : {false, true})
      for (std::size_t i = 0; i < plan_.nodes.size() && !faults_.full(); ++i)
        if (plan_.nodes[i].carried == carried) visit(node_id(i));
    for (std::size_t i = 0; i < plan_.buffers.size() && !faults_.full(); ++i) finish(buffer_id(i));
    check_updates();
  }

 private:
  // Written before the step begins.
  static bool given(const ValueInfo& value) {
    const StorageClass s = value.storage;
    return s == StorageClass::weight || s == StorageClass::state || s == StorageClass::constant ||
           s == StorageClass::input || (s == StorageClass::step && value.given_by_host);
  }
  const Node& node(NodeId id) const { return plan_.nodes[id.index()]; }
  std::string name(BufferId buffer) const { return plan_.name_of(buffer); }

  void visit(NodeId self) {
    const Node& own = node(self);
    for (const BufferUse& use : plan_.uses_of(own)) {
      const Buffer& buffer = plan_.buffers[use.buffer.index()];
      BufferState& state = states_[use.buffer.index()];
      if (own.micro_batch >= 0 && buffer.micro_batch >= 0 && own.micro_batch != buffer.micro_batch &&
          !runs_on(buffer, own.micro_batch))
        faults_.add({self}, fmt::format("{} belongs to a different micro-batch than its user", name(use.buffer)));
      if (state.storage == StorageClass::step) check_step_value(self, use, state);
      if (state.storage == StorageClass::scratch) check_scratch(self, use, state);
      if (state.storage == StorageClass::gathered && own.kind == NodeKind::release) {
        release(self, use, state);
      } else if (use.access == Access::read && scatters(own, use.buffer)) {
        reduce(self, use, buffer, state);
        state.read = true;
        state.reader = self;
      } else if (use.access == Access::read) {
        read(self, use, buffer, state);
      } else if (use.access == Access::add) {
        add(self, use, buffer, state);
      } else if (const NodeCollective* sum = sum_into(plan_, own, use.buffer); sum && sum->send == use.buffer) {
        reduce(self, use, buffer, state);
      } else {
        if (sum && state.reducer.valid())
          faults_.add({self, state.reducer}, fmt::format("{} is reduced twice", name(use.buffer)));
        write(self, use, buffer, state, sum != nullptr);
        if (sum) state.reducer = self;
      }
    }
    last_of_[place_of(own)] = self;
  }

  // For a sum that continues from one block of micro-batches to the next: a node uses that of its own block or of the
  // previous one. A buffer has the number of its block's first micro-batch.
  bool runs_on(const Buffer& buffer, std::int32_t micro_batch) const {
    const auto starts = running_.find(buffer.value);
    if (starts == running_.end() || buffer.micro_batch > micro_batch) return false;
    const auto next = starts->second.upper_bound(buffer.micro_batch), end = starts->second.upper_bound(micro_batch);
    return next == end || std::next(next) == end;
  }

  void read(NodeId self, const BufferUse& use, const Buffer& buffer, BufferState& state) {
    const bool once = node(self).micro_batch < 0;
    const bool of_update = state.storage == StorageClass::weight || (state.storage == StorageClass::state && !once);
    if (of_update && state.writer.valid() && state.writer != self)
      faults_.add({self, state.writer}, fmt::format("{} is read after it is updated", name(use.buffer)));
    if (state.storage == StorageClass::partial)
      faults_.add({self}, fmt::format("{} is one rank's own sum, and read by a node that does not reduce it",
                                      name(use.buffer)));
    if (!state.written) {
      faults_.add({self, state.releaser},
                  fmt::format("{} is {}", name(use.buffer),
                              state.releaser.valid()                    ? "used after it is released"
                              : state.storage == StorageClass::gathered ? "used while it is not gathered"
                                                                        : "read before it is written"));
      state.written = true;  // report it once
    } else if (state.contributions < buffer.contributions) {
      faults_.add({self, state.writer}, fmt::format("{} is read after {} of its {} contributions", name(use.buffer),
                                                    state.contributions, buffer.contributions));
    } else if (once && !state.reducer.valid() && plan_.value_of(use.buffer).summed_over.valid()) {
      faults_.add({self, state.writer}, fmt::format("{} is read before it is reduced", name(use.buffer)));
    }
    state.read = true;
    state.reader = self;
  }

  // sums: the node writes the sum of all ranks' values.
  void write(NodeId self, const BufferUse& use, const Buffer& buffer, BufferState& state, bool sums) {
    const auto fault = [&](const char* what) {
      faults_.add({self, state.writer}, fmt::format("{} {}", name(use.buffer), what));
    };
    if (state.storage == StorageClass::gradient && !sums) return fault("is written by a node that is not a reduction");
    if (state.storage == StorageClass::gathered && state.written) fault("is gathered twice");
    if (state.storage == StorageClass::gathered && node(self).kind != NodeKind::communicate)
      fault("is a gathered parameter, but a node that does not communicate writes it");
    if (state.storage == StorageClass::host && state.written) fault("is waited for twice");
    if (buffer.contributions > 0 && state.storage != StorageClass::step) fault("gets contributions and is overwritten");
    if ((state.storage == StorageClass::activation || state.storage == StorageClass::output) && state.written)
      fault("is written twice");
    if ((state.storage == StorageClass::weight || state.storage == StorageClass::state) && state.writer.valid())
      fault("is updated twice");
    if (state.storage == StorageClass::input || state.storage == StorageClass::constant)
      fault("is an input of the step, but the step writes it");
    state.written = true;
    state.read = false;
    state.reducer = {};
    state.writer = self;
  }

  void reduce(NodeId self, const BufferUse& use, const Buffer& buffer, BufferState& state) {
    if (state.reducer.valid()) faults_.add({self, state.reducer}, fmt::format("{} is reduced twice", name(use.buffer)));
    if (state.contributions < buffer.contributions) {
      faults_.add({self, state.writer}, fmt::format("{} is reduced after {} of its {} contributions", name(use.buffer),
                                                    state.contributions, buffer.contributions));
    } else if (!state.writer.valid()) {
      faults_.add({self}, fmt::format("{} is reduced before it is computed", name(use.buffer)));
    }
    if (state.storage == StorageClass::gradient && state.read)
      faults_.add({self, state.reader}, fmt::format("{} is read before it is reduced", name(use.buffer)));
    state.reducer = state.writer = self;
  }

  void add(NodeId self, const BufferUse& use, const Buffer& buffer, BufferState& state) {
    const std::int32_t number = use.contribution;
    if (number < state.contributions) {
      faults_.add({self, state.writer},
                  fmt::format("contribution {} of {} is counted twice", number, name(use.buffer)));
    } else if (number > state.contributions) {
      faults_.add({self, state.writer}, fmt::format("contribution {} of {} comes before contribution {}", number,
                                                    name(use.buffer), state.contributions));
    }
    if (state.reducer.valid())
      faults_.add({self, state.reducer},
                  fmt::format("{} gets contribution {} after it is reduced", name(use.buffer), number));
    if (state.read && state.contributions > 0)
      faults_.add({self, state.reader}, fmt::format("{} is read before contribution {}", name(use.buffer), number));
    if (number >= buffer.contributions) {
      faults_.add({self}, fmt::format("{} gets contribution {} but expects {}", name(use.buffer), number,
                                      buffer.contributions));
    } else if (const NodeId before = last_of_[place_of(node(self))]; before.valid() && before != self) {
      // Micro-batches add in their own order, whatever the order of nodes: this keeps sums bitwise the same.
      if (buffer.micro_batch < 0 && node(before).micro_batch > node(self).micro_batch)
        faults_.add({self, before}, fmt::format("{} gets the contribution of micro-batch {} after that of {}",
                                                name(use.buffer), node(self).micro_batch, node(before).micro_batch));
    }
    state.contributions = std::max(state.contributions, number + 1);
    state.written = true;
    state.writer = self;
  }

  // A gathered parameter is released: it must be gathered and used, with no computation between its last use and here.
  void release(NodeId self, const BufferUse& use, BufferState& state) {
    if (!state.written) {
      faults_.add({self, state.releaser}, fmt::format("{} is released {}", name(use.buffer),
                                                      state.releaser.valid() ? "twice" : "while it is not gathered"));
      return;
    }
    if (!state.read) {
      faults_.add({self, state.writer}, fmt::format("{} is gathered and never used", name(use.buffer)));
    } else if (const std::int32_t next = next_compute_[state.reader.index()]; next < self.value) {
      faults_.add({self, state.reader, NodeId(next)},
                  fmt::format("{} stays gathered past its last use", name(use.buffer)));
    }
    state.written = state.read = false;
    state.releaser = self;
  }

  // Whether the node sums that buffer over ranks and keeps a part of the sum elsewhere.
  bool scatters(const Node& own, BufferId buffer) const {
    const auto collectives = plan_.collectives_of(own);
    return std::any_of(collectives.begin(), collectives.end(), [&](const NodeCollective& c) {
      return c.kind == CollectiveKind::reduce_scatter && c.send == buffer;
    });
  }

  static std::size_t place_of(const Node& node) {
    return node.place.index() * phase_count + static_cast<std::size_t>(node.phase);
  }

  // A step value is computed by one node, before any node of the step that reads or sums it. Nodes of a micro-batch
  // read what the host wrote.
  void check_step_value(NodeId self, const BufferUse& use, const BufferState& state) {
    if (use.access == Access::add) return;
    const bool changed = state.writer.valid() && node(state.writer).micro_batch < 0;
    if (node(self).micro_batch >= 0) {
      if (changed)
        faults_.add({self, state.writer}, fmt::format("{} is read after the step has changed it", name(use.buffer)));
      return;
    }
    const auto writer = step_writers_.find(use.buffer);
    if (writer == step_writers_.end() || writer->second == self) return;
    const bool sums = sum_into(plan_, node(self), use.buffer) != nullptr;
    if (use.access == Access::write && !sums)
      faults_.add({self, writer->second}, fmt::format("{} is computed twice", name(use.buffer)));
    else if (!changed)
      faults_.add({self, writer->second}, fmt::format("{} is used before the step has computed it", name(use.buffer)));
  }

  void check_scratch(NodeId self, const BufferUse& use, const BufferState& state) {
    for (NodeId other : {state.writer, state.reader})
      if (other.valid() && other != self)
        faults_.add({self, other}, fmt::format("{} is scratch memory, but two nodes use it", name(use.buffer)));
  }

  void finish(BufferId id) {
    const Buffer& buffer = plan_.buffers[id.index()];
    const BufferState& state = states_[id.index()];
    if (state.contributions < buffer.contributions)
      faults_.add({state.writer}, fmt::format("{} gets {} contributions and needs {}", name(id), state.contributions,
                                              buffer.contributions));
    if (has_phase(plan_.kind, Phase::reduce) && plan_.value_of(id).summed_over.valid() && !state.reducer.valid())
      faults_.add({state.writer}, fmt::format("{} is never reduced over ranks", name(id)));
    if (plan_.kind != PlanKind::train) return;
    if (state.storage == StorageClass::step && state.writer.valid() && !state.read && !plan_.value_of(id).read_by_host)
      faults_.add({state.writer}, fmt::format("{} is computed and never used", name(id)));
    if (state.storage == StorageClass::activation && state.written && !state.read)
      faults_.add({state.writer}, fmt::format("{} is written and never read: alive at the end of the step", name(id)));
    if (state.storage == StorageClass::gathered && state.written)
      faults_.add({state.writer, state.reader}, fmt::format("{} is never released", name(id)));
    if (state.storage == StorageClass::gradient && !state.read)
      faults_.add({state.writer}, fmt::format("{} is never used by an update", name(id)));
  }

  // A tensor that gets a gradient must be updated, by a node that reads that gradient.
  void check_updates() {
    if (plan_.kind != PlanKind::train) return;
    std::map<TensorId, BufferId> gradients;
    for (std::size_t i = 0; i < states_.size(); ++i)
      if (states_[i].storage == StorageClass::gradient) gradients[plan_.value_of(buffer_id(i)).tensor] = buffer_id(i);
    for (std::size_t i = 0; i < states_.size(); ++i) {
      if (states_[i].storage != StorageClass::weight || states_[i].writer.valid()) continue;
      const auto gradient = gradients.find(plan_.value_of(buffer_id(i)).tensor);
      if (gradient != gradients.end())
        faults_.add({states_[gradient->second.index()].reader},
                    fmt::format("{} gets a gradient and is never updated", name(buffer_id(i))));
    }
    for (std::size_t i = 0; i < plan_.nodes.size(); ++i) {
      const auto uses = plan_.uses_of(plan_.nodes[i]);
      for (const BufferUse& use : uses) {
        if (use.access != Access::write || states_[use.buffer.index()].storage != StorageClass::weight) continue;
        const TensorId tensor = plan_.value_of(use.buffer).tensor;
        const auto is_gradient = [&](const BufferUse& other) {
          return other.access == Access::read && states_[other.buffer.index()].storage == StorageClass::gradient &&
                 plan_.value_of(other.buffer).tensor == tensor;
        };
        if (gradients.contains(tensor) && std::none_of(uses.begin(), uses.end(), is_gradient))
          faults_.add({node_id(i)},
                      fmt::format("{} is updated by a node that does not read its gradient", name(use.buffer)));
      }
    }
  }

  const Plan& plan_;
  FaultList& faults_;
  std::vector<BufferState> states_;
  std::map<BufferId, NodeId> step_writers_;            // of step values: the first node that computes each
  std::vector<NodeId> last_of_;                        // of each place and phase, by place_of
  std::vector<std::int32_t> next_compute_;             // by node: the next one of the compute lane
  std::map<ValueId, std::set<std::int32_t>> running_;  // running sums: the first micro-batches of their blocks
};

}  // namespace

const NodeCollective* sum_into(const Plan& plan, const Node& node, BufferId buffer) {
  for (const NodeCollective& c : plan.collectives_of(node))
    if ((c.kind == CollectiveKind::all_reduce || c.kind == CollectiveKind::reduce_scatter) && c.receive == buffer)
      return &c;
  return nullptr;
}

void check_buffers(const Plan& plan, FaultList& faults) { Walk(plan, faults).run(); }

}  // namespace weft
