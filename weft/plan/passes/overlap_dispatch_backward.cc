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

}  // namespace

Plan overlap_dispatch_backward(const Plan& plan) {
  Plan overlapped = plan;
  std::vector<Node>& nodes = overlapped.nodes;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Node exchange = nodes[i];
    if (exchange.lane != Lane::exchange || exchange.phase != Phase::backward) continue;
    const auto may_wait = [&](const Node& node) {
      const bool is_backward = node.phase == Phase::backward || node.phase == Phase::weight_gradient;
      return is_backward && node.lane == Lane::compute && node.micro_batch == exchange.micro_batch &&
             plan.place_of(node).unit == plan.place_of(exchange).unit && !depend(plan, node, exchange);
    };
    std::size_t to = i;
    while (to > 0 && may_wait(nodes[to - 1])) --to;
    const auto at = [&](std::size_t index) { return nodes.begin() + static_cast<std::ptrdiff_t>(index); };
    std::rotate(at(to), at(i), at(i + 1));
  }
  return overlapped;
}

}  // namespace weft
