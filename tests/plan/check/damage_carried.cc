#include "tests/plan/check/damage_edit.h"
#include "weft/plan/passes/overlap_updates.h"

namespace weft::damage {

namespace {

// Leaves the updates of the good plan to the next step, and returns one of them, if there is any.
std::optional<std::size_t> any_carried(const GoodPlan& good, Dice& dice, Damage& d) {
  d.plan = overlap_updates(good.plan);
  const std::vector<std::size_t> carried = find_nodes(d.plan, [](const Node& n) { return n.carried; });
  if (carried.empty()) return {};
  return any(carried, dice);
}
// The first node of the step itself that reads, or changes, a buffer.
std::optional<std::size_t> first_use(const Plan& plan, BufferId buffer, bool reads) {
  const std::vector<At> uses = find_uses(plan, [&](const Node& n, const BufferUse& use) {
    return !n.carried && use.buffer == buffer && (use.access == Access::read) == reads;
  });
  if (uses.empty()) return {};
  return uses.front().node;
}
void move_after(Plan& plan, std::size_t from, std::size_t to) { move_before(plan, from, to + 1); }

bool weight_used_before_its_update(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto late_update = any_carried(good, dice, d);
  if (!late_update) return false;
  const std::size_t update = *late_update;
  const Plan late = d.plan;
  std::vector<BufferId> weights;
  for (const BufferUse& use : late.uses_of(late.nodes[update]))
    if (storage(late, use.buffer) == StorageClass::weight && first_use(late, use.buffer, true))
      weights.push_back(use.buffer);
  if (weights.empty()) return false;
  const BufferId weight = any(weights, dice);
  const std::size_t user = *first_use(late, weight, true);
  move_after(d.plan, update, user);
  d.names = {name(late, update), name(late, user), late.name_of(weight)};
  d.messages = {"is read before its update of the previous step"};
  return true;
}
bool gradient_overwritten_before_its_update(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto late_update = any_carried(good, dice, d);
  if (!late_update) return false;
  const std::size_t update = *late_update;
  const Plan late = d.plan;
  std::vector<BufferId> gradients;
  for (const BufferUse& use : late.uses_of(late.nodes[update]))
    if (storage(late, use.buffer) == StorageClass::gradient) gradients.push_back(use.buffer);
  const BufferId gradient = any(gradients, dice);
  const std::size_t adder = *first_use(late, gradient, false);
  move_after(d.plan, update, adder);
  d.names = {name(late, update), name(late, adder), late.name_of(gradient)};
  d.messages = {"is overwritten before the update of the previous step has used it"};
  return true;
}
bool update_after_the_clip_factor(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto late_update = any_carried(good, dice, d);
  if (!late_update) return false;
  const std::size_t update = *late_update;
  const Plan late = d.plan;
  const std::size_t clip = numbers_of(late);
  move_after(d.plan, update, clip);
  d.names = {name(late, update), name(late, clip), "update_values"};
  d.messages = {"is overwritten before the update of the previous step has used it"};
  return true;
}
bool update_of_this_step_at_its_beginning(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto late_update = any_carried(good, dice, d);
  if (!late_update) return false;
  const std::size_t update = *late_update;
  d.plan.nodes[update].carried = false;
  d.names = {name(d.plan, update)};
  d.messages = {"before the step has computed it"};
  return true;
}
bool carried_without_being_an_update(const GoodPlan& good, Dice& dice, Damage& d) {
  if (!any_carried(good, dice, d)) return false;
  const std::size_t node = any(find_nodes(d.plan, [](const Node& n) { return n.phase == Phase::backward; }), dice);
  d.plan.nodes[node].carried = true;
  d.names = {name(d.plan, node)};
  d.messages = {"is left to the next step, but is not an update"};
  return true;
}
bool update_reads_the_hosts_numbers(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto late_update = any_carried(good, dice, d);
  if (!late_update) return false;
  const std::size_t update = *late_update;
  const std::vector<At> given = find_uses(
      d.plan, [&](const Node&, const BufferUse& use) { return d.plan.value_of(use.buffer).name == "step_values"; });
  std::vector<BufferUse> uses = uses_of(d.plan, update);
  for (BufferUse& use : uses)
    if (storage(d.plan, use.buffer) == StorageClass::step) use.buffer = use_at(d.plan, given.front()).buffer;
  set_uses(d.plan, update, uses);
  d.names = {name(d.plan, update), "step_values"};
  d.messages = {"is rewritten by the host before the step that runs this node"};
  return true;
}

}  // namespace

std::vector<DamageKind> of_carried() {
  return {
      {"weight used before its update of the previous step", weight_used_before_its_update, 60},
      {"gradient overwritten before its update", gradient_overwritten_before_its_update, 60},
      {"update after the next clip factor", update_after_the_clip_factor, 60},
      {"update of this step at its beginning", update_of_this_step_at_its_beginning, 60},
      {"carried without being an update", carried_without_being_an_update, 60},
      {"late update reads the host's numbers", update_reads_the_hosts_numbers, 60},
  };
}

}  // namespace weft::damage
