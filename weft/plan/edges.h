// Which node must wait for which, derived from the uses in list order.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "weft/plan/plan.h"

namespace weft {

// Predecessors of every node, without repetition: what it reads must have been written, what it overwrites must have
// been read, and `add`s to one buffer follow their numbers. CSR: those of node i are nodes[begin[i]] .. nodes[begin[i +
// 1] - 1].
struct Edges {
  std::vector<std::int32_t> begin;
  std::vector<NodeId> nodes;

  std::span<const NodeId> before(NodeId node) const {
    return std::span(nodes).subspan(static_cast<std::size_t>(begin[node.index()]),
                                    static_cast<std::size_t>(begin[node.index() + 1] - begin[node.index()]));
  }
};
Edges derive_edges(const Plan& plan);

// The last node of every lane among some nodes; -1: none. Lanes run in order, so waiting for these is waiting for all.
using LaneMarks = std::array<std::int32_t, lane_count>;
inline constexpr LaneMarks no_marks = [] {
  LaneMarks marks{};
  marks.fill(-1);
  return marks;
}();
inline void join(LaneMarks& marks, const LaneMarks& other) {
  for (std::size_t lane = 0; lane < marks.size(); ++lane) marks[lane] = std::max(marks[lane], other[lane]);
}
// Whether `now` includes all marked nodes.
inline bool passed(const LaneMarks& marks, const LaneMarks& now) {
  for (std::size_t lane = 0; lane < marks.size(); ++lane)
    if (marks[lane] > now[lane]) return false;
  return true;
}

// The same edges by lane: for every node, the last node of every other lane that it waits for because of its uses. For
// waits including those for memory, see lane_waits (memory.h).
std::vector<LaneMarks> lane_waits_by_use(const Plan& plan);

// What is known to be done when a node begins: what its lane already knew, what it waits for, and what those knew. Call
// begin and end for the nodes in list order.
class LaneClocks {
 public:
  explicit LaneClocks(std::size_t nodes) : ended_(nodes, no_marks) { at_lane_.fill(no_marks); }

  LaneMarks begin(Lane lane, const LaneMarks& waits) const {
    LaneMarks now = at_lane_[static_cast<std::size_t>(lane)];
    for (std::int32_t mark : waits)
      if (mark >= 0) join(now, ended_[static_cast<std::size_t>(mark)]);
    return now;
  }
  void end(std::size_t node, Lane lane, LaneMarks now) {
    now[static_cast<std::size_t>(lane)] = static_cast<std::int32_t>(node);
    ended_[node] = at_lane_[static_cast<std::size_t>(lane)] = now;
  }

 private:
  std::vector<LaneMarks> ended_;                 // known when node i ends
  std::array<LaneMarks, lane_count> at_lane_{};  // known at the end of each lane
};

// By node: what is known to be done when it begins, also through nodes of other lanes. waits: what it waits for itself.
std::vector<LaneMarks> done_before(const Plan& plan, std::span<const LaneMarks> waits);

}  // namespace weft
