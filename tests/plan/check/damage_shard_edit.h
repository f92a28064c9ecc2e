// Helpers of the kinds of damage to divided parameters (damage_shards.cc, damage_shard_gradients.cc).
#pragma once

#include "tests/plan/check/damage_edit.h"

namespace weft::damage {

// A collective: its node, and its position in the node's list.
struct CallAt {
  std::size_t node = 0, collective = 0;
};
inline const NodeCollective& call_at(const Plan& plan, CallAt at) {
  return plan.collectives_of(plan.nodes[at.node])[at.collective];
}
template <class Want>  // Want(node, collective)
std::vector<CallAt> find_calls(const Plan& plan, const Want& want) {
  std::vector<CallAt> found;
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const auto list = plan.collectives_of(plan.nodes[i]);
    for (std::size_t c = 0; c < list.size(); ++c)
      if (want(plan.nodes[i], list[c])) found.push_back({i, c});
  }
  return found;
}
inline std::vector<CallAt> gathers(const Plan& plan) {
  return find_calls(plan, [&](const Node&, const NodeCollective& c) {
    return c.kind == CollectiveKind::all_gather && storage(plan, c.receive) == StorageClass::gathered;
  });
}
// Of partial gradients, into parts.
inline std::vector<CallAt> divisions(const Plan& plan) {
  return find_calls(plan, [&](const Node&, const NodeCollective& c) {
    return c.kind == CollectiveKind::reduce_scatter && storage(plan, c.send) == StorageClass::partial;
  });
}

inline std::vector<std::size_t> users(const Plan& plan, BufferId buffer, Access access) {
  return find_nodes(plan, [&](const Node& node) {
    const auto uses = plan.uses_of(node);
    return std::any_of(uses.begin(), uses.end(),
                       [&](const BufferUse& use) { return use.buffer == buffer && use.access == access; });
  });
}
// In the order of the list, without what the previous step left.
inline std::vector<std::size_t> readers(const Plan& plan, BufferId buffer) {
  std::vector<std::size_t> found = users(plan, buffer, Access::read);
  std::erase_if(found, [&](std::size_t i) { return plan.nodes[i].carried; });
  return found;
}
inline std::vector<std::size_t> releases_of(const Plan& plan, BufferId buffer) {
  std::vector<std::size_t> found = users(plan, buffer, Access::write);
  std::erase_if(found, [&](std::size_t i) { return plan.nodes[i].kind != NodeKind::release; });
  return found;
}
template <class Want>  // Want(value)
std::vector<BufferId> find_buffers(const Plan& plan, const Want& want) {
  std::vector<BufferId> found;
  for (std::size_t b = 0; b < plan.buffers.size(); ++b)
    if (const BufferId buffer(static_cast<std::int64_t>(b)); want(plan.value_of(buffer))) found.push_back(buffer);
  return found;
}
inline std::vector<BufferId> instances_of(const Plan& plan, ValueId value) {
  std::vector<BufferId> found;
  for (std::size_t b = 0; b < plan.buffers.size(); ++b)
    if (plan.buffers[b].value == value) found.emplace_back(static_cast<std::int64_t>(b));
  return found;
}

inline void erase(Plan& plan, std::size_t node) {
  plan.nodes.erase(plan.nodes.begin() + static_cast<std::ptrdiff_t>(node));
}
// Runs the node again, before the one that is now at `to`.
inline void insert_copy(Plan& plan, std::size_t node, std::size_t to) {
  const Node copy = plan.nodes[node];
  plan.nodes.insert(plan.nodes.begin() + static_cast<std::ptrdiff_t>(to), copy);
}
inline NodeCollective& change_call(Plan& plan, CallAt at) {
  return plan.collectives[size(plan.nodes[at.node].first_collective) + at.collective];
}
inline void replace_use(Plan& plan, std::size_t node, BufferId before, BufferId after) {
  std::vector<BufferUse> uses = uses_of(plan, node);
  for (BufferUse& use : uses)
    if (use.buffer == before) use.buffer = after;
  set_uses(plan, node, uses);
}
// In what the call sends or receives, and in the uses of its node.
inline void replace_in_call(Plan& plan, CallAt at, BufferId before, BufferId after) {
  for (BufferId* side : {&change_call(plan, at).send, &change_call(plan, at).receive})
    if (*side == before) *side = after;
  replace_use(plan, at.node, before, after);
}
// The call, and what it sends and receives; the node if it has no other.
inline void remove_call(Plan& plan, CallAt at) {
  std::vector<NodeCollective> list = collectives_of(plan, at.node);
  const NodeCollective call = list[at.collective];
  if (list.size() == 1) return erase(plan, at.node);
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(at.collective));
  std::vector<BufferUse> uses = uses_of(plan, at.node);
  std::erase_if(uses, [&](const BufferUse& use) { return use.buffer == call.send || use.buffer == call.receive; });
  set_collectives(plan, at.node, list);
  set_uses(plan, at.node, uses);
}

}  // namespace weft::damage
