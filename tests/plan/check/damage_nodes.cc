#include "tests/plan/check/damage_edit.h"

namespace weft::damage {

namespace {

// --- which nodes there are

bool node_missing(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::size_t at = size(dice.below(good.plan.nodes.size()));
  d.plan.nodes.erase(d.plan.nodes.begin() + static_cast<std::ptrdiff_t>(at));
  d.messages = {"is missing"};
  if (good.plan.nodes[at].piece.valid()) {
    d.names = {name(good.plan, at)};
  } else {  // a pass added it: its effect is missing
    d.messages = {"is never reduced over ranks",      "is read before it is reduced",
                  "is read before it is written",     "is reduced before it is computed",
                  "is used while it is not gathered", "is never released",
                  "is written and never read"};
  }
  return true;
}
bool node_twice(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::size_t at = size(dice.below(good.plan.nodes.size()));
  const std::size_t to = at + size(dice.below(good.plan.nodes.size() - at + 1));
  d.plan.nodes.insert(d.plan.nodes.begin() + static_cast<std::ptrdiff_t>(to), good.plan.nodes[at]);
  d.names = {name(good.plan, at)};
  d.messages = {"appears twice",
                "is reduced twice",
                "is waited for twice",
                "is computed twice",
                "is gathered twice",
                "is released twice",
                "is counted twice",
                "is released while it is not gathered",
                "is gathered and never used",
                "is never released"};
  return true;
}

bool phase_missing(const GoodPlan& good, Dice& dice, Damage& d) {
  // All nodes of a phase, or all that run once per step: nothing is left that needs them.
  const Phase phase = dice.yes() ? Phase::update : any(good.plan.nodes, dice).phase;
  const bool whole_step = phase == Phase::update || phase == Phase::reduce;
  const auto gone = [&](const Node& node) { return node.phase == phase || (whole_step && node.micro_batch < 0); };
  std::erase_if(d.plan.nodes, gone);
  const auto has_piece = [&](const Node& node) { return gone(node) && node.piece.valid(); };
  d.names = {name(good.plan, any(find_nodes(good.plan, has_piece), dice))};
  d.messages = {"is missing"};
  return true;
}
bool phase_of_other_kind(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::size_t at =
      any(find_nodes(good.plan, [](const Node& node) { return node.phase == Phase::forward; }), dice);
  d.plan.nodes[at].phase = Phase::evaluate;
  d.names = {name(d.plan, at)};
  d.messages = {"does not belong in a plan of kind train"};
  return true;
}

// --- contributions

bool contributions_swapped(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<At> adds = find_uses(good.plan, [&](const Node&, const BufferUse& use) {
    return use.access == Access::add && use.contribution + 1 < good.plan.buffers[use.buffer.index()].contributions;
  });
  if (adds.empty()) return false;
  const At first = any(adds, dice);
  const BufferUse own = use_at(good.plan, first);
  const At second = find_uses(good.plan, [&](const Node&, const BufferUse& use) {
                      return use.buffer == own.buffer && use.contribution == own.contribution + 1;
                    }).front();
  if (first.node == second.node) return false;
  std::swap(d.plan.nodes[first.node], d.plan.nodes[second.node]);
  d.names = {name(good.plan, first.node), name(good.plan, second.node)};
  d.messages = {"is counted twice"};
  return true;
}
bool micro_batches_swapped(const GoodPlan& good, Dice& dice, Damage& d) {
  // Two micro-batches of a piece change places, along with the numbers of their contributions: the numbers are in
  // order, but the sum differs.
  const Plan& plan = good.plan;
  const std::vector<At> adds = find_uses(plan, [&](const Node& node, const BufferUse& use) {
    return use.access == Access::add && node.micro_batch > 0 && plan.buffers[use.buffer.index()].micro_batch < 0;
  });
  if (adds.empty()) return false;
  const At at = any(adds, dice);
  const Node& own = plan.nodes[at.node];
  const std::size_t other =
      find_nodes(plan, [&](const Node& node) {
        return node.place == own.place && node.phase == own.phase && node.micro_batch == own.micro_batch - 1;
      }).front();
  for (std::size_t u = 0; u < size(own.uses); ++u) {
    BufferUse &a = change_use(d.plan, {at.node, u}), &b = change_use(d.plan, {other, u});
    if (a.buffer == b.buffer) std::swap(a.contribution, b.contribution);
  }
  std::swap(d.plan.nodes[at.node], d.plan.nodes[other]);
  d.names = {name(plan, at.node), name(plan, other), plan.name_of(use_at(plan, at).buffer)};
  d.messages = {"gets the contribution of micro-batch"};
  return true;
}
bool contribution_missing(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<At> adds =
      find_uses(good.plan, [](const Node&, const BufferUse& use) { return use.access == Access::add; });
  const At at = any(adds, dice);
  const BufferUse own = use_at(good.plan, at);
  remove_use(d.plan, at);
  d.names = {good.plan.name_of(own.buffer)};
  d.messages = {"contributions", "comes before contribution", "is never", "before it is written"};
  return true;
}

// --- reads and writes

bool read_too_early(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<At> writes = find_uses(good.plan, [&](const Node&, const BufferUse& use) {
    return use.access == Access::write && storage(good.plan, use.buffer) == StorageClass::activation;
  });
  const At write = any(writes, dice);
  const BufferId buffer = use_at(good.plan, write).buffer;
  const std::vector<At> reads = find_uses(
      good.plan, [&](const Node&, const BufferUse& use) { return use.buffer == buffer && use.access == Access::read; });
  const At read = any(reads, dice);
  move_before(d.plan, read.node, write.node);
  d.names = {name(good.plan, read.node), good.plan.name_of(buffer)};
  d.messages = {"is read before it is written"};
  return true;
}
bool read_between_contributions(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<At> reads = find_uses(good.plan, [&](const Node& n, const BufferUse& use) {
    return !n.carried && use.access == Access::read && good.plan.buffers[use.buffer.index()].contributions > 1;
  });
  if (reads.empty()) return false;
  const At read = any(reads, dice);
  const BufferId buffer = use_at(good.plan, read).buffer;
  const std::size_t adder = *last_adder(good.plan, buffer);
  if (adder == read.node) return false;
  move_before(d.plan, read.node, adder);
  d.names = {name(good.plan, read.node), good.plan.name_of(buffer)};
  d.messages = {"is read after", "is reduced after"};
  return true;
}
bool activation_never_read(const GoodPlan& good, Dice& dice, Damage& d) {
  std::vector<int> readers(good.plan.buffers.size());
  for (const Node& node : good.plan.nodes)
    for (const BufferUse& use : good.plan.uses_of(node)) readers[use.buffer.index()] += use.access == Access::read;
  const std::vector<At> last = find_uses(good.plan, [&](const Node&, const BufferUse& use) {
    return use.access == Access::read && readers[use.buffer.index()] == 1 &&
           storage(good.plan, use.buffer) == StorageClass::activation;
  });
  if (last.empty()) return false;
  const At at = any(last, dice);
  const BufferId buffer = use_at(good.plan, at).buffer;
  remove_use(d.plan, at);
  // Nothing shows which node should have read it; the fault names its writer.
  const At writer = find_uses(good.plan, [&](const Node&, const BufferUse& use) {
                      return use.buffer == buffer && use.access != Access::read;
                    }).back();
  d.names = {name(good.plan, writer.node), good.plan.name_of(buffer)};
  d.messages = {"alive at the end"};
  return true;
}
bool other_micro_batch(const GoodPlan& good, Dice& dice, Damage& d) {
  const Plan& plan = good.plan;
  const std::vector<At> reads = find_uses(plan, [&](const Node& node, const BufferUse& use) {
    return node.micro_batch > 0 && use.access == Access::read && plan.buffers[use.buffer.index()].micro_batch > 0 &&
           !plan.value_of(use.buffer).running;
  });
  if (reads.empty()) return false;
  const At at = any(reads, dice);
  const Buffer own = plan.buffers[use_at(plan, at).buffer.index()];
  for (std::size_t b = 0; b < plan.buffers.size(); ++b)
    if (plan.buffers[b].value == own.value && plan.buffers[b].micro_batch == own.micro_batch - 1)
      change_use(d.plan, at).buffer = BufferId(static_cast<std::int64_t>(b));
  d.names = {name(plan, at.node)};
  d.messages = {"belongs to a different micro-batch"};
  return true;
}
bool scratch_of_two(const GoodPlan& good, Dice& dice, Damage& d) {
  const Plan& plan = good.plan;
  const std::vector<At> scratch = find_uses(
      plan, [&](const Node&, const BufferUse& use) { return storage(plan, use.buffer) == StorageClass::scratch; });
  if (scratch.empty()) return false;
  const At at = any(scratch, dice);
  if (at.node + 1 == plan.nodes.size()) return false;
  std::vector<BufferUse> uses = uses_of(plan, at.node + 1);
  uses.push_back({use_at(plan, at).buffer, Access::read, -1});
  set_uses(d.plan, at.node + 1, uses);
  d.names = {name(plan, at.node), name(plan, at.node + 1)};
  d.messages = {"is scratch memory, but two nodes use it"};
  return true;
}

}  // namespace

std::vector<DamageKind> of_nodes() {
  return {
      {"node missing", node_missing, 60},
      {"node twice", node_twice, 60},
      {"phase missing", phase_missing, 60},
      {"phase of another kind", phase_of_other_kind, 60},
      {"contributions swapped", contributions_swapped, 40},
      {"micro-batches swapped", micro_batches_swapped, 40},
      {"contribution missing", contribution_missing, 60},
      {"read too early", read_too_early, 60},
      {"read between contributions", read_between_contributions, 40},
      {"activation never read", activation_never_read, 60},
      {"buffer of another micro-batch", other_micro_batch, 40},
      {"scratch of two nodes", scratch_of_two, 40},
  };
}

}  // namespace weft::damage
