#include "weft/plan/edges.h"

namespace weft {

namespace {

// The one definition of edges: calls edge(node, before) for everything a node waits for, possibly more than once.
template <class Edge>
void walk_edges(const Plan& plan, const Edge& edge) {
  struct LastUses {
    NodeId writer;
    std::vector<NodeId> readers;  // since the writer
  };
  std::vector<LastUses> last(plan.buffers.size());
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const NodeId self(static_cast<std::int64_t>(i));
    for (const BufferUse& use : plan.uses_of(plan.nodes[i])) {
      LastUses& l = last[use.buffer.index()];
      if (l.writer.valid() && l.writer != self) edge(self, l.writer);
      if (use.access == Access::read) {
        l.readers.push_back(self);
      } else {
        for (NodeId reader : l.readers)
          if (reader != self) edge(self, reader);
        l.readers.clear();
        l.writer = self;
      }
    }
  }
}

}  // namespace

Edges derive_edges(const Plan& plan) {
  std::vector<std::vector<NodeId>> before(plan.nodes.size());
  walk_edges(plan, [&](NodeId node, NodeId other) { before[node.index()].push_back(other); });
  Edges edges;
  edges.begin.push_back(0);
  for (std::vector<NodeId>& list : before) {
    std::sort(list.begin(), list.end());
    edges.nodes.insert(edges.nodes.end(), list.begin(), std::unique(list.begin(), list.end()));
    edges.begin.push_back(static_cast<std::int32_t>(edges.nodes.size()));
  }
  return edges;
}

std::vector<LaneMarks> lane_waits_by_use(const Plan& plan) {
  std::vector<LaneMarks> waits(plan.nodes.size(), no_marks);
  walk_edges(plan, [&](NodeId node, NodeId other) {
    const Lane lane = plan.nodes[other.index()].lane;
    if (lane == plan.nodes[node.index()].lane) return;  // in order anyway
    std::int32_t& mark = waits[node.index()][static_cast<std::size_t>(lane)];
    mark = std::max(mark, other.value);
  });
  return waits;
}

std::vector<LaneMarks> done_before(const Plan& plan, std::span<const LaneMarks> waits) {
  std::vector<LaneMarks> done;
  LaneClocks clocks(plan.nodes.size());
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    done.push_back(clocks.begin(plan.nodes[i].lane, waits[i]));
    clocks.end(i, plan.nodes[i].lane, done.back());
  }
  return done;
}

}  // namespace weft
