#include "weft/plan/passes/delay_weight_gradients.h"

namespace weft {

namespace {

bool is_backward(const Node& node) {
  return node.phase == Phase::backward || node.phase == Phase::weight_gradient || node.phase == Phase::recompute;
}

// One unit's backward pass: nodes [first, last). The weight gradients that may wait go to `waiting`.
void put_unit(const std::vector<Node>& nodes, std::size_t first, std::size_t last, std::vector<Node>& out,
              std::vector<Node>& waiting) {
  std::size_t behind_exchange = first;
  for (std::size_t i = first; i < last; ++i)
    if (nodes[i].lane == Lane::exchange) behind_exchange = i;
  for (std::size_t i = first; i < last; ++i)
    (nodes[i].phase == Phase::weight_gradient && i >= behind_exchange ? waiting : out).push_back(nodes[i]);
}

}  // namespace

Plan delay_weight_gradients(const Plan& plan, const std::vector<int>& unit_chunks) {
  Plan delayed = plan;
  delayed.nodes.clear();
  const auto unit_of = [&](const Node& node) { return plan.place_of(node).unit; };
  // What keeps its weight gradients to its end: one unit's backward pass, or one chunk's.
  const auto pass_of = [&](const Node& node) {
    return unit_chunks.empty() ? unit_of(node) : unit_chunks.at(static_cast<std::size_t>(unit_of(node)));
  };
  const auto end_of = [&](std::size_t begin, const auto& number_of) {
    std::size_t end = begin;
    while (end < plan.nodes.size() && is_backward(plan.nodes[end]) &&
           plan.nodes[end].micro_batch == plan.nodes[begin].micro_batch &&
           number_of(plan.nodes[end]) == number_of(plan.nodes[begin]))
      ++end;
    return end;
  };
  std::vector<Node> waiting;
  for (std::size_t i = 0; i < plan.nodes.size();) {
    if (!is_backward(plan.nodes[i])) {
      delayed.nodes.push_back(plan.nodes[i]);
      ++i;
      continue;
    }
    const std::size_t end_of_pass = end_of(i, pass_of);
    while (i < end_of_pass) {
      const std::size_t end = end_of(i, unit_of);
      put_unit(plan.nodes, i, end, delayed.nodes, waiting);
      i = end;
    }
    delayed.nodes.insert(delayed.nodes.end(), waiting.begin(), waiting.end());
    waiting.clear();
  }
  return delayed;
}

}  // namespace weft
