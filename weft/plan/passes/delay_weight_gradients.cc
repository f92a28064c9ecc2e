#include "weft/plan/passes/delay_weight_gradients.h"

namespace weft {

namespace {

bool is_backward(const Node& node) {
  return node.phase == Phase::backward || node.phase == Phase::weight_gradient || node.phase == Phase::recompute;
}

// One unit's backward pass: nodes [first, last).
void put_unit(const std::vector<Node>& nodes, std::size_t first, std::size_t last, std::vector<Node>& out) {
  std::size_t behind_exchange = first;
  for (std::size_t i = first; i < last; ++i)
    if (nodes[i].lane == Lane::exchange) behind_exchange = i;
  std::vector<Node> waiting;
  for (std::size_t i = first; i < last; ++i)
    (nodes[i].phase == Phase::weight_gradient && i >= behind_exchange ? waiting : out).push_back(nodes[i]);
  out.insert(out.end(), waiting.begin(), waiting.end());
}

}  // namespace

Plan delay_weight_gradients(const Plan& plan) {
  Plan delayed = plan;
  delayed.nodes.clear();
  const auto unit_of = [&](const Node& node) { return plan.place_of(node).unit; };
  for (std::size_t i = 0; i < plan.nodes.size();) {
    const Node& node = plan.nodes[i];
    if (!is_backward(node)) {
      delayed.nodes.push_back(node);
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end < plan.nodes.size() && is_backward(plan.nodes[end]) && plan.nodes[end].micro_batch == node.micro_batch &&
           unit_of(plan.nodes[end]) == unit_of(node))
      ++end;
    put_unit(plan.nodes, i, end, delayed.nodes);
    i = end;
  }
  return delayed;
}

}  // namespace weft
