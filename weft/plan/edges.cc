#include "weft/plan/edges.h"

#include <algorithm>

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

}  // namespace weft
