// Whether two nodes can touch the same bytes for different buffers.
//
// A buffer owns its memory from its first node until all its nodes are known to be done. The list is walked in order,
// with a map from bytes of the arena to the buffer that had them last. Where a buffer begins, all earlier users of its
// bytes must be done according to what its first node waits for: lanes, edges and waits for memory (LaneClocks). All
// other nodes of the buffer wait for its first one, which writes it (check_buffers).
#include <map>

#include "weft/plan/check/faults.h"

namespace weft {

namespace {

struct Span {
  std::int64_t begin = 0, end = 0;
};

// The last owner of each byte. Ranges never overlap; a new owner cuts the old ones.
class Owners {
 public:
  // Calls visit(buffer) for every owner of some of these bytes, and makes `buffer` their owner.
  template <class Visit>
  void take(Span span, BufferId buffer, const Visit& visit) {
    auto at = ranges_.upper_bound(span.begin);
    if (at != ranges_.begin() && std::prev(at)->second.end > span.begin) --at;
    while (at != ranges_.end() && at->first < span.end) {
      const std::int64_t begin = at->first;
      const Range old = at->second;
      visit(old.buffer);
      at = ranges_.erase(at);
      if (begin < span.begin) ranges_.emplace_hint(at, begin, Range{span.begin, old.buffer});
      if (old.end > span.end) at = ranges_.emplace_hint(at, span.end, Range{old.end, old.buffer});
    }
    ranges_.emplace_hint(at, span.begin, Range{span.end, buffer});
  }

 private:
  struct Range {
    std::int64_t end = 0;
    BufferId buffer;
  };
  std::map<std::int64_t, Range> ranges_;
};

class MemoryCheck {
 public:
  MemoryCheck(const Plan& plan, const MemoryPlan& memory, const std::string& whose)
      : plan_(plan), memory_(memory), faults_(plan, whose) {}

  std::vector<PlanFault> run() {
    if (memory_.offset.size() != plan_.buffers.size() || memory_.lifetimes.size() != plan_.buffers.size() ||
        memory_.live.size() != plan_.nodes.size()) {
      faults_.add({},
                  fmt::format("memory was planned for {} buffers and {} nodes, but the plan has {} and {}",
                              memory_.offset.size(), memory_.live.size(), plan_.buffers.size(), plan_.nodes.size()));
      return faults_.take();
    }
    check_waits();
    if (faults_.empty()) walk();
    return faults_.take();
  }

 private:
  static bool outside(StorageClass s) {
    return s == StorageClass::weight || s == StorageClass::gradient || s == StorageClass::state ||
           s == StorageClass::host;
  }

  void check_waits() {
    for (const MemoryReuse& reuse : memory_.reuses)
      for (std::size_t lane = 0; lane < lane_count; ++lane) {
        const std::int32_t mark = reuse.after[lane];
        if (mark < 0) continue;
        if (static_cast<std::size_t>(mark) >= plan_.nodes.size() || !reuse.node.valid() ||
            reuse.node.index() >= plan_.nodes.size() ||
            plan_.nodes[static_cast<std::size_t>(mark)].lane != static_cast<Lane>(lane)) {
          faults_.add({}, fmt::format("node {} waits for node {} of lane {}, which does not exist", reuse.node.value,
                                      mark, name_of(static_cast<Lane>(lane))));
        } else if (mark >= reuse.node.value) {
          faults_.add({reuse.node, NodeId(mark)},
                      mark == reuse.node.value || plan_.nodes[reuse.node.index()].lane == static_cast<Lane>(lane)
                          ? "a lane waits for itself: a node takes over memory from a later node"
                          : "a node waits for memory that a later node in the list still uses");
        }
      }
  }

  void walk() {
    // Fixed buffers first: they keep their memory for the whole step.
    for (std::size_t i = 0; i < plan_.buffers.size(); ++i) {
      const BufferId buffer = buffer_id(i);
      const StorageClass storage = plan_.value_of(buffer).storage;
      const std::int64_t offset = memory_.offset[i], end = offset + plan_.value_of(buffer).bytes;
      if (memory_.lifetimes[i].first < 0 && offset < 0) continue;
      if (outside(storage) != (offset < 0) || (offset >= 0 && end > memory_.arena))
        faults_.add({NodeId(memory_.lifetimes[i].first)},
                    fmt::format("{} is at bytes {} to {} of an arena of {}", plan_.name_of(buffer), offset, end,
                                memory_.arena));
    }
    if (!faults_.empty()) return;
    const std::vector<LaneMarks> waits = lane_waits(plan_, memory_);
    LaneClocks clocks(plan_.nodes.size());
    users_.assign(plan_.buffers.size(), no_marks);
    freed_.assign(plan_.buffers.size(), {});
    for (std::size_t i = 0; i < plan_.buffers.size(); ++i)
      if (memory_.offset[i] >= 0 && fixed(plan_.value_of(buffer_id(i)).storage)) begin(buffer_id(i), {}, no_marks);
    for (std::size_t i = 0; i < plan_.nodes.size() && !faults_.full(); ++i) {
      const Node& node = plan_.nodes[i];
      const LaneMarks now = clocks.begin(node.lane, waits[i]);
      for (const BufferUse& use : plan_.uses_of(node)) {
        const std::size_t b = use.buffer.index();
        if (memory_.offset[b] < 0) continue;
        const Lifetime life = memory_.lifetimes[b];
        if (static_cast<std::int32_t>(i) < life.first || static_cast<std::int32_t>(i) > life.last)
          faults_.add({node_id(i), NodeId(life.last)},
                      fmt::format("{} is used outside its lifetime", plan_.name_of(use.buffer)));
        LaneMarks& users = users_[b];
        if (users == no_marks && !fixed(plan_.value_of(use.buffer).storage)) begin(use.buffer, node_id(i), now);
        if (freed_[b].node.valid())
          faults_.add({node_id(i), freed_[b].node},
                      fmt::format("{} is used after it is freed: its memory was given to {}", plan_.name_of(use.buffer),
                                  plan_.name_of(freed_[b].to)));
        users[static_cast<std::size_t>(node.lane)] = static_cast<std::int32_t>(i);
      }
      clocks.end(i, node.lane, now);
    }
  }

  static bool fixed(StorageClass s) { return !shares_arena(s); }

  // `node` is the first to use the buffer.
  void begin(BufferId buffer, NodeId node, const LaneMarks& now) {
    const std::int64_t offset = memory_.offset[buffer.index()];
    const std::int64_t bytes = plan_.value_of(buffer).bytes;
    if (bytes == 0) return;
    owners_.take({offset, offset + bytes}, buffer, [&](BufferId before) {
      if (!node.valid() || fixed(plan_.value_of(before).storage)) {
        faults_.add({node, NodeId(memory_.lifetimes[before.index()].first)},
                    fmt::format("{} and {} have the same memory", plan_.name_of(buffer), plan_.name_of(before)));
        return;
      }
      freed_[before.index()] = {node, buffer};
      const LaneMarks& users = users_[before.index()];
      if (passed(users, now)) return;
      for (std::size_t lane = 0; lane < lane_count; ++lane)
        if (users[lane] > now[lane])
          faults_.add({node, NodeId(users[lane])},
                      fmt::format("{} takes the memory of {} without waiting for its last use", plan_.name_of(buffer),
                                  plan_.name_of(before)));
    });
  }

  struct Freed {
    NodeId node;
    BufferId to;
  };
  const Plan& plan_;
  const MemoryPlan& memory_;
  FaultList faults_;
  Owners owners_;
  std::vector<LaneMarks> users_;  // by buffer, so far
  std::vector<Freed> freed_;      // by buffer: where its memory was reused
};

}  // namespace

std::vector<PlanFault> check_memory(const Plan& plan, const MemoryPlan& memory, const std::string& whose) {
  return MemoryCheck(plan, memory, whose).run();
}

}  // namespace weft
