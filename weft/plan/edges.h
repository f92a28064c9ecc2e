// Which node must wait for which, derived from the uses in the order of the list.
#pragma once

#include <span>
#include <vector>

#include "weft/plan/plan.h"

namespace weft {

// Predecessors of every node, without repetition: what it reads must be written, what it writes must be read by then,
// and `add`s to one buffer follow their numbers. CSR: those of node i are nodes[begin[i]] .. nodes[begin[i + 1] - 1].
struct Edges {
  std::vector<std::int32_t> begin;
  std::vector<NodeId> nodes;

  std::span<const NodeId> before(NodeId node) const {
    return std::span(nodes).subspan(static_cast<std::size_t>(begin[node.index()]),
                                    static_cast<std::size_t>(begin[node.index() + 1] - begin[node.index()]));
  }
};
Edges derive_edges(const Plan& plan);

}  // namespace weft
