#include "weft/plan/passes/overlap_dispatch_backward.h"

#include <algorithm>

namespace weft {

namespace {

// Whether they use a buffer of which one of them changes the contents.
bool depend(const Plan& plan, const Node& a, const Node& b) {
  for (const BufferUse& x : plan.uses_of(a))
    for (const BufferUse& y : plan.uses_of(b))
      if (x.buffer == y.buffer && (x.access != Access::read || y.access != Access::read)) return true;
  return false;
}

using NodeIterator = std::vector<Node>::iterator;

// One unit's backward pass: nodes [first, last).
void put_exchanges_early(const Plan& plan, NodeIterator first, NodeIterator last) {
  const auto is_exchange = [](const Node& node) { return node.lane == Lane::exchange; };
  for (NodeIterator at = std::find_if(first, last, is_exchange); at != last;
       at = std::find_if(at + 1, last, is_exchange)) {
    NodeIterator to = at;
    while (to != first && to[-1].lane == Lane::compute && !depend(plan, to[-1], *at)) --to;
    std::rotate(to, at, at + 1);
    at = to;
    std::vector<Node> waiting{*at};
    const auto waits = [&](const Node& node) {
      const bool does =
          std::any_of(waiting.begin(), waiting.end(), [&](const Node& other) { return depend(plan, node, other); });
      if (does) waiting.push_back(node);
      return does;
    };
    // Up to the next node that communicates.
    const NodeIterator end = std::find_if(at + 1, last, [](const Node& node) { return node.lane != Lane::compute; });
    NodeIterator free = at + 1;
    for (NodeIterator node = at + 1; node != end; ++node)
      if (!waits(*node)) std::rotate(free++, node, node + 1);
  }
}

}  // namespace

Plan overlap_dispatch_backward(const Plan& plan) {
  Plan overlapped = plan;
  const auto in_pass_of = [&](const Node& first) {
    return [&plan, unit = plan.place_of(first).unit, micro_batch = first.micro_batch](const Node& node) {
      return (node.phase == Phase::backward || node.phase == Phase::weight_gradient ||
              node.phase == Phase::recompute) &&
             node.micro_batch == micro_batch && plan.place_of(node).unit == unit;
    };
  };
  for (NodeIterator at = overlapped.nodes.begin(); at != overlapped.nodes.end();) {
    const NodeIterator end = std::find_if_not(at, overlapped.nodes.end(), in_pass_of(*at));
    put_exchanges_early(plan, at, end);
    at = end == at ? at + 1 : end;
  }
  return overlapped;
}

}  // namespace weft
