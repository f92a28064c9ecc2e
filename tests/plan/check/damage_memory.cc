#include "tests/plan/check/damage_edit.h"
#include "weft/plan/edges.h"

namespace weft::damage {

namespace {

// --- memory

std::vector<std::size_t> arena_buffers(const GoodPlan& good) {
  std::vector<std::size_t> found;
  for (std::size_t b = 0; b < good.plan.buffers.size(); ++b) {
    const StorageClass s = storage(good.plan, BufferId(static_cast<std::int64_t>(b)));
    if ((s == StorageClass::activation || s == StorageClass::scratch) && good.memory.lifetimes[b].first >= 0)
      found.push_back(b);
  }
  return found;
}
bool memory_of_two(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<std::size_t> buffers = arena_buffers(good);
  const std::size_t a = any(buffers, dice);
  std::vector<std::size_t> beside;  // alive at the same time, begun later
  for (std::size_t b : buffers)
    if (b != a && good.memory.lifetimes[b].first >= good.memory.lifetimes[a].first &&
        good.memory.lifetimes[b].first <= good.memory.lifetimes[a].last &&
        good.memory.offset[a] + good.plan.value_of(BufferId(static_cast<std::int64_t>(b))).bytes <= good.memory.arena)
      beside.push_back(b);
  if (beside.empty()) return false;
  const std::size_t b = any(beside, dice);
  d.memory.offset[b] = good.memory.offset[a];
  d.keeps_memory = true;
  const auto buffer_name = [&](std::size_t i) { return good.plan.name_of(BufferId(static_cast<std::int64_t>(i))); };
  d.names = {buffer_name(a), buffer_name(b), name(good.plan, size(good.memory.lifetimes[b].first))};
  d.messages = {"memory of", "its memory was given to", "have the same memory"};
  return true;
}
bool used_outside_its_life(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::size_t b = any(arena_buffers(good), dice);
  const Lifetime life = good.memory.lifetimes[b];
  if (life.first == life.last) return false;
  d.memory.lifetimes[b].last = life.last - 1;
  d.keeps_memory = true;
  d.names = {name(good.plan, size(life.last)), good.plan.name_of(BufferId(static_cast<std::int64_t>(b)))};
  d.messages = {"outside its lifetime"};
  return true;
}
bool wait_for_memory_dropped(const GoodPlan& good, Dice& dice, Damage& d) {
  if (good.memory.reuses.empty()) return false;
  const std::size_t at = size(dice.below(good.memory.reuses.size()));
  d.memory.reuses.erase(d.memory.reuses.begin() + static_cast<std::ptrdiff_t>(at));
  // Another wait may cover it, or a later node of the lane may have relied on it: ask the brute-force oracle.
  const auto found = races(good.plan, d.memory);
  if (found.empty()) return false;
  d.keeps_memory = true;
  NodeId taker = std::max(found.front().first, found.front().second);  // the first node that takes memory in use
  for (const auto& [a, b] : found) taker = std::min(taker, std::max(a, b));
  d.names = {name(good.plan, taker.index())};
  d.messages = {"without waiting for its last use"};
  return true;
}
bool lane_waits_for_itself(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::size_t node = size(dice.below(good.plan.nodes.size()));
  const std::vector<std::size_t> later = find_nodes(
      good.plan, [&](const Node& n) { return n.lane == good.plan.nodes[node].lane && &n > &good.plan.nodes[node]; });
  if (later.empty()) return false;
  const std::size_t other = any(later, dice);
  MemoryReuse wait{id(node), no_marks};
  wait.after[static_cast<std::size_t>(good.plan.nodes[other].lane)] = static_cast<std::int32_t>(other);
  d.memory.reuses.push_back(wait);
  d.keeps_memory = true;
  d.names = {name(good.plan, node), name(good.plan, other)};
  d.messages = {"a lane waits for itself"};
  return true;
}
bool lanes_wait_for_each_other(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::size_t node = size(dice.below(good.plan.nodes.size()));
  const std::vector<std::size_t> later = find_nodes(
      good.plan, [&](const Node& n) { return n.lane != good.plan.nodes[node].lane && &n > &good.plan.nodes[node]; });
  if (later.empty()) return false;
  const std::size_t other = any(later, dice);
  MemoryReuse wait{id(node), no_marks};
  wait.after[static_cast<std::size_t>(good.plan.nodes[other].lane)] = static_cast<std::int32_t>(other);
  d.memory.reuses.push_back(wait);
  d.keeps_memory = true;
  d.names = {name(good.plan, node), name(good.plan, other)};
  d.messages = {"a later node in the list still uses"};
  return true;
}

}  // namespace

std::vector<DamageKind> of_memory() {
  return {
      {"memory of two", memory_of_two, 50},
      {"used outside its life", used_outside_its_life, 20},
      {"wait for memory dropped", wait_for_memory_dropped, 3},
      {"lane waits for itself", lane_waits_for_itself, 40},
      {"lanes wait for each other", lanes_wait_for_each_other, 40},
  };
}

}  // namespace weft::damage

namespace weft {

std::vector<std::pair<NodeId, NodeId>> races(const Plan& plan, const MemoryPlan& memory) {
  const std::size_t n = plan.nodes.size();
  // before[i]: the nodes that are done when i begins.
  std::vector<std::vector<bool>> before(n, std::vector<bool>(n));
  const auto follow = [&](std::size_t node, std::size_t earlier) {
    before[node][earlier] = true;
    for (std::size_t i = 0; i < n; ++i)
      if (before[earlier][i]) before[node][i] = true;
  };
  const Edges edges = derive_edges(plan);
  for (std::size_t i = 0; i < n; ++i) {
    for (NodeId e : edges.before(damage::id(i))) follow(i, e.index());
    for (std::size_t j = 0; j < i; ++j)
      if (plan.nodes[j].lane == plan.nodes[i].lane) follow(i, j);
    for (const MemoryReuse& reuse : memory.reuses)
      if (reuse.node == damage::id(i))
        for (std::int32_t mark : reuse.after)
          if (mark >= 0) follow(i, damage::size(mark));
  }
  std::vector<std::vector<std::size_t>> users(plan.buffers.size());
  for (std::size_t i = 0; i < n; ++i)
    for (const BufferUse& use : plan.uses_of(plan.nodes[i])) users[use.buffer.index()].push_back(i);
  const auto all_before = [&](std::size_t a, std::size_t b) {
    for (std::size_t i : users[a])
      for (std::size_t j : users[b])
        if (!before[j][i]) return false;
    return true;
  };
  std::vector<std::pair<NodeId, NodeId>> found;
  for (std::size_t a = 0; a < users.size(); ++a)
    for (std::size_t b = 0; b < a; ++b) {
      if (memory.offset[a] < 0 || memory.offset[b] < 0 || users[a].empty() || users[b].empty()) continue;
      const auto end = [&](std::size_t i) {
        return memory.offset[i] + plan.value_of(BufferId(static_cast<std::int64_t>(i))).bytes;
      };
      if (memory.offset[a] >= end(b) || memory.offset[b] >= end(a)) continue;
      if (!all_before(a, b) && !all_before(b, a))
        found.emplace_back(damage::id(users[a].front()), damage::id(users[b].front()));
    }
  return found;
}

}  // namespace weft
