#include "weft/plan/passes/overlap_updates.h"

#include <algorithm>

namespace weft {

namespace {

bool updates_weights(const Plan& plan, const Node& node) {
  const auto uses = plan.uses_of(node);
  return node.phase == Phase::update && std::any_of(uses.begin(), uses.end(), [&](const BufferUse& use) {
           return use.access == Access::write && plan.value_of(use.buffer).storage == Storage::weight;
         });
}

}  // namespace

Plan overlap_updates(const Plan& plan) {
  Plan overlapped = plan;
  for (Node& node : overlapped.nodes) {
    if (!updates_weights(plan, node)) continue;
    node.carried = true;
    node.lane = Lane::update;
  }
  std::stable_partition(overlapped.nodes.begin(), overlapped.nodes.end(),
                        [](const Node& node) { return node.carried; });
  return overlapped;
}

}  // namespace weft
