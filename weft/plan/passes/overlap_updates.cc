#include "weft/plan/passes/overlap_updates.h"

#include <algorithm>

namespace weft {

namespace {

bool uses_storage(const Plan& plan, const Node& node, Access access, StorageClass storage) {
  const auto uses = plan.uses_of(node);
  return std::any_of(uses.begin(), uses.end(), [&](const BufferUse& use) {
    return use.access == access && plan.value_of(use.buffer).storage == storage;
  });
}

bool updates_weights(const Plan& plan, const Node& node) {
  return node.phase == Phase::update && uses_storage(plan, node, Access::write, StorageClass::weight);
}

// Whether updates wait for all gradients: they do if there is a norm.
bool needs_all_gradients(const Plan& plan) {
  return std::any_of(plan.nodes.begin(), plan.nodes.end(), [&](const Node& node) {
    return node.phase == Phase::update && !updates_weights(plan, node) &&
           uses_storage(plan, node, Access::read, StorageClass::gradient);
  });
}

std::int64_t updated_bytes(const Plan& plan, const Node& node) {
  std::int64_t bytes = 0;
  for (const BufferUse& use : plan.uses_of(node))
    if (plan.value_of(use.buffer).storage == StorageClass::weight) bytes += plan.value_of(use.buffer).bytes;
  return bytes;
}

// Carries a third of the bytes, counted from the last unit, whose gradients are ready first.
void carry_a_third(Plan& plan) {
  std::int64_t all = 0, carried = 0;
  for (auto node = plan.nodes.rbegin(); node != plan.nodes.rend(); ++node) {
    if (node->lane != Lane::update || !updates_weights(plan, *node)) continue;
    const std::int64_t bytes = updated_bytes(plan, *node);
    all += bytes;
    node->carried = 3 * carried + 2 * bytes <= all;
    if (node->carried) carried += bytes;
  }
}

}  // namespace

Plan overlap_updates(const Plan& plan) {
  Plan overlapped = plan;
  const bool early = !needs_all_gradients(plan);
  for (Node& node : overlapped.nodes) {
    const bool updates = updates_weights(plan, node);
    if (updates || (early && node.phase == Phase::update)) node.lane = Lane::update;
    node.carried = updates && !early;
  }
  if (early) carry_a_third(overlapped);
  const auto rest = std::stable_partition(overlapped.nodes.begin(), overlapped.nodes.end(),
                                          [](const Node& node) { return node.carried; });
  const auto first = std::stable_partition(rest, overlapped.nodes.end(),
                                           [&](const Node& node) { return !updates_weights(plan, node); });
  std::reverse(first, overlapped.nodes.end());
  return overlapped;
}

}  // namespace weft
