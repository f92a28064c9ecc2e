#include "weft/plan/check.h"

#include <fmt/format.h>

#include "weft/base/error.h"

namespace weft {

namespace {

// What the checker knows of a buffer while it walks the list.
struct BufferState {
  bool written = false;
  bool read = false;  // since it was written
  bool reduced = false;
  std::int32_t contributions = 0;
  NodeId last;  // node that used it last
  NodeId writer;
};

class Checker {
 public:
  explicit Checker(const Plan& plan) : plan_(plan), states_(plan.buffers.size()) {}

  std::vector<PlanFault> run() {
    for (const Node& node : plan_.nodes) has_updates_ |= node.phase == Phase::update;
    for (std::size_t i = 0; i < plan_.buffers.size(); ++i) states_[i].written = given(storage_of(i));
    for (std::size_t i = 0; i < plan_.nodes.size(); ++i) visit(NodeId(static_cast<std::int64_t>(i)));
    for (std::size_t i = 0; i < plan_.buffers.size(); ++i) finish(BufferId(static_cast<std::int64_t>(i)));
    check_final_norm();
    return std::move(faults_);
  }

 private:
  Storage storage_of(std::size_t buffer) const { return plan_.values[plan_.buffers[buffer].value.index()].storage; }
  // Written before the step begins.
  static bool given(Storage s) {
    return s == Storage::weight || s == Storage::state || s == Storage::constant || s == Storage::input ||
           s == Storage::step;
  }

  void fault(std::vector<NodeId> nodes, const std::string& message) {
    std::string text = message;
    for (NodeId node : nodes)
      if (node.valid()) text += fmt::format("\n    node {}: {}", node.value, plan_.name_of(plan_.nodes[node.index()]));
    std::erase_if(nodes, [](NodeId node) { return !node.valid(); });
    faults_.push_back({std::move(text), std::move(nodes)});
  }

  void visit(NodeId self) {
    const Node& node = plan_.nodes[self.index()];
    for (const BufferUse& use : plan_.uses_of(node)) {
      const Buffer& buffer = plan_.buffers[use.buffer.index()];
      BufferState& state = states_[use.buffer.index()];
      check_step_order(self, use, state);
      switch (use.access) {
        case Access::read:
          read(self, use, buffer, state);
          break;
        case Access::write:
          write(self, use, buffer, state);
          break;
        case Access::add:
          add(self, use, buffer, state);
          break;
      }
      state.last = self;
    }
  }

  void read(NodeId self, const BufferUse& use, const Buffer& buffer, BufferState& state) {
    if (storage_of(use.buffer.index()) == Storage::weight && state.writer.valid())
      fault({self, state.writer}, fmt::format("{} is read after it is updated", plan_.name_of(use.buffer)));
    if (!state.written) {
      fault({self}, fmt::format("{} is read before it is written", plan_.name_of(use.buffer)));
      state.written = true;  // say it once
    } else if (buffer.contributions > 0 && state.contributions < buffer.contributions &&
               storage_of(use.buffer.index()) != Storage::step) {
      fault({self, state.writer}, fmt::format("{} is read after {} of its {} contributions", plan_.name_of(use.buffer),
                                              state.contributions, buffer.contributions));
    }
    state.read = true;
  }

  void write(NodeId self, const BufferUse& use, const Buffer& buffer, BufferState& state) {
    const Storage storage = storage_of(use.buffer.index());
    if (storage == Storage::gradient) return reduce(self, use, buffer, state);
    if (plan_.nodes[self.index()].phase == Phase::reduce) {
      if (state.reduced) fault({self, state.writer}, fmt::format("{} is reduced twice", plan_.name_of(use.buffer)));
      if (state.contributions < buffer.contributions || (buffer.contributions == 0 && !state.writer.valid()))
        fault({self}, fmt::format("{} is reduced before it is complete", plan_.name_of(use.buffer)));
      state.reduced = true;
    }
    if (buffer.contributions > 0 && storage != Storage::step)
      fault({self, state.writer}, fmt::format("{} gets contributions and is written over", plan_.name_of(use.buffer)));
    if ((storage == Storage::activation || storage == Storage::output) && state.written)
      fault({self, state.writer}, fmt::format("{} is written twice", plan_.name_of(use.buffer)));
    if (storage == Storage::input || storage == Storage::constant)
      fault({self}, fmt::format("{} is given to the step and is written by it", plan_.name_of(use.buffer)));
    state.written = true;
    state.read = false;
    state.writer = self;
  }

  void reduce(NodeId self, const BufferUse& use, const Buffer& buffer, BufferState& state) {
    if (plan_.nodes[self.index()].phase != Phase::reduce)
      fault({self}, fmt::format("{} is written by a node that is no reduction", plan_.name_of(use.buffer)));
    if (state.reduced) fault({self, state.writer}, fmt::format("{} is reduced twice", plan_.name_of(use.buffer)));
    if (state.contributions < buffer.contributions)
      fault({self, state.writer}, fmt::format("{} is reduced after {} of its {} contributions",
                                              plan_.name_of(use.buffer), state.contributions, buffer.contributions));
    if (state.read)
      fault({self, state.last}, fmt::format("{} is read before it is reduced", plan_.name_of(use.buffer)));
    state.reduced = true;
    state.writer = self;
  }

  void add(NodeId self, const BufferUse& use, const Buffer& buffer, BufferState& state) {
    if (use.contribution < state.contributions) {
      fault({self, state.writer},
            fmt::format("contribution {} of {} is counted twice", use.contribution, plan_.name_of(use.buffer)));
    } else if (use.contribution > state.contributions) {
      fault({self, state.writer}, fmt::format("contribution {} of {} comes before contribution {}", use.contribution,
                                              plan_.name_of(use.buffer), state.contributions));
    }
    if (state.reduced)
      fault({self, state.writer},
            fmt::format("{} gets contribution {} after it is reduced", plan_.name_of(use.buffer), use.contribution));
    if (state.read && state.contributions > 0)
      fault({self, state.last},
            fmt::format("{} is read before contribution {}", plan_.name_of(use.buffer), use.contribution));
    if (use.contribution >= buffer.contributions)
      fault({self}, fmt::format("{} gets contribution {} but expects {}", plan_.name_of(use.buffer), use.contribution,
                                buffer.contributions));
    state.contributions = use.contribution + 1;
    state.written = true;
    state.writer = self;
  }

  void finish(BufferId id) {
    const Buffer& buffer = plan_.buffers[id.index()];
    const BufferState& state = states_[id.index()];
    const Storage storage = storage_of(id.index());
    if (state.contributions < buffer.contributions)
      fault({state.writer}, fmt::format("{} gets {} contributions and needs {}", plan_.name_of(id), state.contributions,
                                        buffer.contributions));
    if (storage == Storage::step && state.writer.valid() && !state.read && has_updates() &&
        !plan_.value_of(id).read_by_host)
      fault({state.writer}, fmt::format("{} is computed and never used", plan_.name_of(id)));
    if (storage == Storage::activation && state.written && !state.read && has_updates())
      fault({state.writer},
            fmt::format("{} is written and never read: alive at the end of the step", plan_.name_of(id)));
    if (plan_.value_of(id).summed_over_ranks && has_updates() && !state.reduced)
      fault({state.writer}, fmt::format("{} is never reduced over ranks", plan_.name_of(id)));
    if (storage == Storage::gradient && !state.read && has_updates())
      fault({state.writer}, fmt::format("{} is never used by an update", plan_.name_of(id)));
  }

  bool has_updates() const { return has_updates_; }

  // In every micro-batch: the layers, then the final norm, then the head.
  void check_final_norm() {
    std::vector<NodeId> norm(static_cast<std::size_t>(plan_.micro_batches));
    for (std::size_t i = 0; i < plan_.nodes.size(); ++i) {
      const Node& node = plan_.nodes[i];
      if (node.phase != Phase::forward && node.phase != Phase::evaluate) continue;
      const NodeId self(static_cast<std::int64_t>(i));
      const auto m = static_cast<std::size_t>(node.micro_batch);
      const std::string& name = plan_.pieces[node.piece.index()].layer;
      if (name == "final_norm") {
        norm[m] = self;
      } else if (name == "head") {
        if (!norm[m].valid()) fault({self}, "the head runs before the final norm");
      } else if (name.starts_with("main.")) {
        if (norm[m].valid()) fault({self, norm[m]}, "a layer of the main part runs after the final norm");
      }
    }
  }

  // Step values pass from node to node in the order in which their pieces are declared: contributions, reduction, norm,
  // clip, updates. `writes` and reads of one value must keep it.
  void check_step_order(NodeId self, const BufferUse& use, BufferState& state) {
    if (storage_of(use.buffer.index()) != Storage::step) return;
    const std::int32_t piece = plan_.nodes[self.index()].piece.value;
    if (state.writer.valid() && plan_.nodes[state.writer.index()].piece.value > piece && use.access != Access::add &&
        plan_.nodes[self.index()].micro_batch < 0)
      fault({self, state.writer},
            fmt::format("{} is used after a node that comes behind this one wrote it", plan_.name_of(use.buffer)));
    if (use.access == Access::read && plan_.nodes[self.index()].micro_batch < 0 && !state.writer.valid() &&
        written_in_step(use.buffer))
      fault({self}, fmt::format("{} is read before the step has computed it", plan_.name_of(use.buffer)));
  }
  // Whether some node writes the value before its readers of the step come: true for all but what the host gives.
  bool written_in_step(BufferId buffer) const {
    for (const Node& node : plan_.nodes)
      for (const BufferUse& use : plan_.uses_of(node))
        if (use.buffer == buffer && use.access != Access::read) return true;
    return false;
  }

  const Plan& plan_;
  std::vector<BufferState> states_;
  std::vector<PlanFault> faults_;
  bool has_updates_ = false;
};

}  // namespace

std::vector<PlanFault> check_plan(const Plan& plan) { return Checker(plan).run(); }

void require_valid(const Plan& plan, const std::string& made_by) {
  const std::vector<PlanFault> faults = check_plan(plan);
  if (faults.empty()) return;
  std::string text = fmt::format("the plan made by {} is wrong in {} places:", made_by, faults.size());
  for (std::size_t i = 0; i < std::min<std::size_t>(faults.size(), 10); ++i) text += "\n  " + faults[i].message;
  throw BugError(text);
}

}  // namespace weft
