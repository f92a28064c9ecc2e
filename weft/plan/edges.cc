#include "weft/plan/edges.h"

namespace weft {

Edges derive_edges(const Plan& plan) {
  struct LastUses {
    NodeId writer;
    std::vector<NodeId> readers;  // since the writer
  };
  std::vector<LastUses> last(plan.buffers.size());
  Edges edges;
  edges.begin.push_back(0);
  std::vector<NodeId> before;
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const NodeId self(static_cast<std::int64_t>(i));
    before.clear();
    for (const BufferUse& use : plan.uses_of(plan.nodes[i])) {
      LastUses& l = last[use.buffer.index()];
      if (l.writer.valid() && l.writer != self) before.push_back(l.writer);
      if (use.access == Access::read) {
        l.readers.push_back(self);
      } else {
        for (NodeId reader : l.readers)
          if (reader != self) before.push_back(reader);
        l.readers.clear();
        l.writer = self;
      }
    }
    std::sort(before.begin(), before.end());
    before.erase(std::unique(before.begin(), before.end()), before.end());
    edges.nodes.insert(edges.nodes.end(), before.begin(), before.end());
    edges.begin.push_back(static_cast<std::int32_t>(edges.nodes.size()));
  }
  return edges;
}

std::vector<LaneMarks> lane_waits(const Plan& plan) {
  struct LastUses {
    std::int32_t writer = -1;
    LaneMarks readers = no_marks;  // since the writer
  };
  std::vector<LastUses> last(plan.buffers.size());
  std::vector<LaneMarks> waits(plan.nodes.size(), no_marks);
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const Node& node = plan.nodes[i];
    const auto lane = static_cast<std::size_t>(node.lane);
    const auto self = static_cast<std::int32_t>(i);
    LaneMarks& marks = waits[i];
    for (const BufferUse& use : plan.uses_of(node)) {
      LastUses& l = last[use.buffer.index()];
      if (l.writer >= 0) {
        std::int32_t& mark = marks[static_cast<std::size_t>(plan.nodes[static_cast<std::size_t>(l.writer)].lane)];
        mark = std::max(mark, l.writer);
      }
      if (use.access == Access::read) {
        l.readers[lane] = self;
      } else {
        join(marks, l.readers);
        l.readers = no_marks;
        l.writer = self;
      }
    }
    marks[lane] = -1;  // its own lane is in order anyway
  }
  return waits;
}

}  // namespace weft
