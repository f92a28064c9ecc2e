// Helpers of the kinds of damage (damage.h) to inspect and change plans.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "tests/plan/check/damage.h"

namespace weft::damage {

inline std::size_t size(std::int32_t n) { return static_cast<std::size_t>(n); }
inline NodeId id(std::size_t i) { return NodeId(static_cast<std::int64_t>(i)); }

template <class T>
const T& any(const std::vector<T>& list, Dice& dice) {
  return list[size(dice.below(list.size()))];
}

// A use: a node and a position in its list.
struct At {
  std::size_t node = 0, use = 0;
};
template <class Want>  // Want(node, use)
std::vector<At> find_uses(const Plan& plan, const Want& want) {
  std::vector<At> found;
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const auto uses = plan.uses_of(plan.nodes[i]);
    for (std::size_t u = 0; u < uses.size(); ++u)
      if (want(plan.nodes[i], uses[u])) found.push_back({i, u});
  }
  return found;
}
template <class Want>  // Want(node)
std::vector<std::size_t> find_nodes(const Plan& plan, const Want& want) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < plan.nodes.size(); ++i)
    if (want(plan.nodes[i])) found.push_back(i);
  return found;
}
inline std::string name(const Plan& plan, std::size_t node) { return plan.name_of(plan.nodes[node]); }
inline StorageClass storage(const Plan& plan, BufferId buffer) { return plan.value_of(buffer).storage; }
inline const BufferUse& use_at(const Plan& plan, At at) { return plan.uses_of(plan.nodes[at.node])[at.use]; }
inline bool is_piece(const Plan& plan, const Node& node, const char* layer, const char* piece) {
  const PlaceInfo& info = plan.place_of(node);
  return info.layer == layer && info.piece == piece;
}

// Moves a node to before the one that is now at `to`.
inline void move_before(Plan& plan, std::size_t from, std::size_t to) {
  const auto begin = plan.nodes.begin();
  const auto at = [&](std::size_t i) { return begin + static_cast<std::ptrdiff_t>(i); };
  if (from > to) {
    std::rotate(at(to), at(from), at(from + 1));
  } else {
    std::rotate(at(from), at(from + 1), at(to));
  }
}

// The lists of nodes are not shared, so each may be changed alone.
inline void set_uses(Plan& plan, std::size_t node, const std::vector<BufferUse>& uses) {
  plan.nodes[node].first_use = static_cast<std::int32_t>(plan.uses.size());
  plan.nodes[node].uses = static_cast<std::int32_t>(uses.size());
  plan.uses.insert(plan.uses.end(), uses.begin(), uses.end());
}
inline void set_collectives(Plan& plan, std::size_t node, const std::vector<NodeCollective>& collectives) {
  plan.nodes[node].first_collective = static_cast<std::int32_t>(plan.collectives.size());
  plan.nodes[node].collectives = static_cast<std::int32_t>(collectives.size());
  plan.collectives.insert(plan.collectives.end(), collectives.begin(), collectives.end());
}
inline std::vector<BufferUse> uses_of(const Plan& plan, std::size_t node) {
  const auto uses = plan.uses_of(plan.nodes[node]);
  return {uses.begin(), uses.end()};
}
inline std::vector<NodeCollective> collectives_of(const Plan& plan, std::size_t node) {
  const auto collectives = plan.collectives_of(plan.nodes[node]);
  return {collectives.begin(), collectives.end()};
}
inline void remove_use(Plan& plan, At at) {
  std::vector<BufferUse> uses = uses_of(plan, at.node);
  uses.erase(uses.begin() + static_cast<std::ptrdiff_t>(at.use));
  set_uses(plan, at.node, uses);
}
inline BufferUse& change_use(Plan& plan, At at) { return plan.uses[size(plan.nodes[at.node].first_use) + at.use]; }

// The node that makes the numbers of the updates; without a norm it does not clip.
inline std::size_t numbers_of(const Plan& plan) {
  return find_nodes(
             plan,
             [&](const Node& n) { return is_piece(plan, n, "step", "clip") || is_piece(plan, n, "step", "numbers"); })
      .front();
}

// The sums over ranks.
struct Sum {
  std::size_t node, collective;
};
template <class Want>  // Want(value)
std::vector<Sum> find_sums(const Plan& plan, const Want& want) {
  std::vector<Sum> sums;
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const auto list = plan.collectives_of(plan.nodes[i]);
    for (std::size_t c = 0; c < list.size(); ++c)
      if (list[c].kind == CollectiveKind::all_reduce && want(plan.value_of(list[c].receive))) sums.push_back({i, c});
  }
  return sums;
}
inline bool is_gradient(const ValueInfo& value) { return value.storage == StorageClass::gradient; }
inline std::vector<Sum> gradient_sums(const Plan& plan) { return find_sums(plan, is_gradient); }
// The node that makes the last contribution to a buffer.
inline std::optional<std::size_t> last_adder(const Plan& plan, BufferId buffer) {
  const std::int32_t last = plan.buffers[buffer.index()].contributions - 1;
  const std::vector<At> adds = find_uses(plan, [&](const Node&, const BufferUse& use) {
    return use.buffer == buffer && use.access == Access::add && use.contribution == last;
  });
  if (adds.empty()) return {};
  return adds.front().node;
}

// A group whose ranks differ from those of the right one; invalid: there is none.
inline GroupId other_group(const GoodPlan& good, GroupId right, Dice& dice) {
  const Layout layout = good.origin.layout();
  std::vector<GroupId> wrong;
  for (int id = 0; id < Layout::group_count; ++id)
    if (layout.members_of(GroupId(id)) != layout.members_of(right)) wrong.push_back(GroupId(id));
  return wrong.empty() ? GroupId{} : any(wrong, dice);
}

// The kinds, by what they break.
std::vector<DamageKind> of_nodes();          // which there are, what they read, write and add to
std::vector<DamageKind> of_ranks();          // what ranks do together
std::vector<DamageKind> of_step();           // updates, step values, the final norm
std::vector<DamageKind> of_carried();        // what a step leaves to the next
std::vector<DamageKind> of_recomputation();  // what backward computes again
std::vector<DamageKind> of_memory();         // where buffers are, and who waits for whom
std::vector<DamageKind> of_shards();         // where divided parameters are whole
std::vector<DamageKind> of_shard_gradients();
std::vector<DamageKind> of_stages();  // what travels between stages

}  // namespace weft::damage
