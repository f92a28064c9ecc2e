#include "tests/plan/check/damage_edit.h"

namespace weft::damage {

namespace {

std::optional<std::size_t> any_again(const Plan& plan, Dice& dice) {
  const auto nodes = find_nodes(plan, [](const Node& n) { return n.phase == Phase::recompute && n.piece.valid(); });
  if (nodes.empty()) return {};
  return any(nodes, dice);
}
// What it writes and another node reads.
std::vector<BufferId> made_by(const Plan& plan, std::size_t node) {
  std::vector<BufferId> made;
  for (const BufferUse& use : plan.uses_of(plan.nodes[node]))
    if (use.access == Access::write && storage(plan, use.buffer) == StorageClass::activation)
      made.push_back(use.buffer);
  return made;
}
std::vector<At> readers_of(const Plan& plan, BufferId buffer) {
  return find_uses(
      plan, [&](const Node&, const BufferUse& use) { return use.buffer == buffer && use.access == Access::read; });
}

bool computed_again_after_use(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::optional<std::size_t> node = any_again(good.plan, dice);
  if (!node) return false;
  const BufferId made = any(made_by(good.plan, *node), dice);
  const std::size_t reader = readers_of(good.plan, made).front().node;
  move_before(d.plan, *node, reader + 1);
  d.names = {name(good.plan, reader), good.plan.name_of(made)};
  d.messages = {"is read before it is written"};
  return true;
}
bool not_computed_again(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::optional<std::size_t> node = any_again(good.plan, dice);
  if (!node) return false;
  d.plan.nodes.erase(d.plan.nodes.begin() + static_cast<std::ptrdiff_t>(*node));
  d.names = {name(good.plan, *node)};
  d.messages = {"is missing"};
  return true;
}
bool computed_again_twice(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::optional<std::size_t> node = any_again(good.plan, dice);
  if (!node) return false;
  const Node again = good.plan.nodes[*node];
  d.plan.nodes.insert(d.plan.nodes.begin() + static_cast<std::ptrdiff_t>(*node), again);
  d.names = {name(good.plan, *node)};
  d.messages = {"appears twice"};
  return true;
}
bool statistic_computed_again(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::optional<std::size_t> node = any_again(good.plan, dice);
  if (!node) return false;
  const std::vector<At> adds = find_uses(good.plan, [](const Node& n, const BufferUse& u) {
    return n.phase == Phase::forward && u.access == Access::add;
  });
  BufferUse use = use_at(good.plan, any(adds, dice));
  use.contribution = d.plan.buffers[use.buffer.index()].contributions++;
  std::vector<BufferUse> uses = uses_of(good.plan, *node);
  uses.push_back(use);
  set_uses(d.plan, *node, uses);
  d.names = {name(good.plan, *node), good.plan.name_of(use.buffer)};
  d.messages = {"is computed again, but it counts something"};
  return true;
}
// Backward reads what the forward pass wrote and has dropped.
bool dropped_value_read(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::optional<std::size_t> node = any_again(good.plan, dice);
  if (!node) return false;
  const BufferId made = any(made_by(good.plan, *node), dice);
  const std::string dropped = "unread(" + good.plan.value_of(made).name + ")";
  const auto before = find_uses(good.plan, [&](const Node& n, const BufferUse& use) {
    return n.phase == Phase::forward && n.micro_batch == good.plan.nodes[*node].micro_batch &&
           good.plan.value_of(use.buffer).name == dropped;
  });
  if (before.empty()) return false;
  const BufferId was = use_at(good.plan, before.front()).buffer;
  const At reader = readers_of(good.plan, made).front();
  change_use(d.plan, reader).buffer = was;
  d.names = {name(good.plan, reader.node), good.plan.name_of(was)};
  d.messages = {"is scratch memory, but two nodes use it"};
  return true;
}
bool computed_again_for_nobody(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::optional<std::size_t> node = any_again(good.plan, dice);
  if (!node) return false;
  for (const BufferId made : made_by(good.plan, *node)) {
    ValueInfo info = good.plan.value_of(made);
    info.storage = StorageClass::scratch;
    d.plan.buffers[made.index()].value = d.plan.add_value(info);
  }
  d.names = {name(good.plan, *node)};
  d.messages = {"computes again what nobody reads"};
  return true;
}

}  // namespace

std::vector<DamageKind> of_recomputation() {
  return {
      {"computed again after use", computed_again_after_use, 20},
      {"not computed again", not_computed_again, 20},
      {"computed again twice", computed_again_twice, 20},
      {"statistic computed again", statistic_computed_again, 20},
      {"dropped value read", dropped_value_read, 20},
      {"computed again for nobody", computed_again_for_nobody, 20},
  };
}

}  // namespace weft::damage
