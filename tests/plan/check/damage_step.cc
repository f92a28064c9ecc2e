#include "tests/plan/check/damage_edit.h"

namespace weft::damage {

namespace {

// --- the step's own nodes

bool weight_read_after_update(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<At> writes = find_uses(good.plan, [&](const Node& n, const BufferUse& use) {
    return !n.carried && use.access == Access::write && storage(good.plan, use.buffer) == StorageClass::weight;
  });
  if (writes.empty()) return false;
  const At write = any(writes, dice);
  const BufferId weight = use_at(good.plan, write).buffer;
  const At read = find_uses(good.plan, [&](const Node&, const BufferUse& use) {
                    return use.buffer == weight && use.access == Access::read;
                  }).back();
  move_before(d.plan, write.node, read.node);
  d.names = {name(good.plan, write.node), name(good.plan, read.node), good.plan.name_of(weight)};
  d.messages = {"is read after it is updated"};
  return true;
}
bool weight_not_updated(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<At> writes = find_uses(good.plan, [&](const Node&, const BufferUse& use) {
    return use.access == Access::write && storage(good.plan, use.buffer) == StorageClass::weight;
  });
  const At write = any(writes, dice);
  remove_use(d.plan, write);
  d.names = {name(good.plan, write.node), good.plan.name_of(use_at(good.plan, write).buffer)};
  d.messages = {"is never updated"};
  return true;
}
// Every gradient is used once, but not by the update of its own weight.
bool gradients_of_updates_swapped(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<At> reads = find_uses(good.plan, [&](const Node& n, const BufferUse& use) {
    return n.phase == Phase::update && n.piece.valid() && storage(good.plan, use.buffer) == StorageClass::gradient;
  });
  const At a = any(reads, dice), b = any(reads, dice);
  if (a.node == b.node) return false;
  std::vector<BufferUse> first = uses_of(good.plan, a.node), second = uses_of(good.plan, b.node);
  std::swap(first[a.use], second[b.use]);
  set_uses(d.plan, a.node, first);
  set_uses(d.plan, b.node, second);
  d.names = {name(good.plan, (dice.yes() ? a : b).node)};
  d.messages = {"is updated by a node that does not read its gradient"};
  return true;
}
bool weight_updated_twice(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<At> writes = find_uses(good.plan, [&](const Node&, const BufferUse& use) {
    return use.access == Access::write && storage(good.plan, use.buffer) == StorageClass::weight;
  });
  const At a = any(writes, dice), b = any(writes, dice);
  if (a.node == b.node) return false;
  std::vector<BufferUse> uses = uses_of(good.plan, b.node);
  uses.push_back(use_at(good.plan, a));
  set_uses(d.plan, b.node, uses);
  d.names = {name(good.plan, a.node), name(good.plan, b.node), good.plan.name_of(uses.back().buffer)};
  d.messages = {"is updated twice"};
  return true;
}
bool step_out_of_order(const GoodPlan& good, Dice& dice, Damage& d) {
  // norm -> clip -> updates
  const std::size_t clip = numbers_of(good.plan);
  const std::vector<std::size_t> norms =
      find_nodes(good.plan, [&](const Node& n) { return is_piece(good.plan, n, "step", "norm"); });
  const std::vector<std::size_t> updates =
      find_nodes(good.plan, [&](const Node& n) { return n.phase == Phase::update && &n > &good.plan.nodes[clip]; });
  const bool early_update = norms.empty() || (!updates.empty() && dice.yes());
  if (early_update) {
    if (updates.empty()) return false;
    const std::size_t update = any(updates, dice);
    move_before(d.plan, update, clip);
    d.names = {name(good.plan, update), name(good.plan, clip)};
  } else {
    move_before(d.plan, clip, norms.front());
    d.names = {name(good.plan, clip)};
  }
  d.messages = {"before the step has computed it"};
  return true;
}
bool step_value_changed_early(const GoodPlan& good, Dice&, Damage& d) {
  const std::size_t clip = numbers_of(good.plan);
  const std::size_t head =
      find_nodes(good.plan, [&](const Node& n) {
        return n.phase == Phase::forward && n.piece.valid() && good.plan.place_of(n).layer == "head";
      }).back();
  // The clip factor overwrites the host's numbers before a head that reads them, too.
  std::vector<BufferUse> uses = uses_of(good.plan, clip), read = uses_of(good.plan, head);
  BufferId given;
  for (const BufferUse& use : uses)
    if (good.plan.value_of(use.buffer).name == "step_values") given = use.buffer;
  read.push_back({given, Access::read});
  set_uses(d.plan, head, read);
  for (BufferUse& use : uses)
    if (use.buffer == given) use.access = Access::write;
  set_uses(d.plan, clip, uses);
  move_before(d.plan, clip, head);
  d.names = {name(good.plan, clip), name(good.plan, head)};
  d.messages = {"is read after the step has changed it"};
  return true;
}

// --- the final norm

std::vector<std::size_t> forward_of(const Plan& plan, Section section) {
  return find_nodes(plan, [&](const Node& node) {
    return node.phase == Phase::forward && node.piece.valid() && plan.place_of(node).section == section;
  });
}
// The final norm of the node's main part or MTP depth and micro-batch.
std::size_t norm_of(const Plan& plan, std::size_t of) {
  const std::vector<std::size_t> norms = forward_of(plan, Section::final_norm);
  const auto same = [&](std::size_t norm) {
    const Node &a = plan.nodes[norm], &b = plan.nodes[of];
    return a.micro_batch == b.micro_batch && plan.place_of(a).depth == plan.place_of(b).depth;
  };
  return *std::find_if(norms.begin(), norms.end(), same);
}

bool head_skips_the_norm(const GoodPlan& good, Dice& dice, Damage& d) {
  const Plan& plan = good.plan;
  const std::size_t head = any(forward_of(plan, Section::head), dice), norm = norm_of(plan, head);
  BufferId input, output;  // of the norm: the first activation of each
  for (const BufferUse& use : plan.uses_of(plan.nodes[norm])) {
    if (storage(plan, use.buffer) != StorageClass::activation) continue;
    BufferId& buffer = use.access == Access::read ? input : output;
    if (!buffer.valid()) buffer = use.buffer;
  }
  std::vector<BufferUse> uses = uses_of(plan, head);
  for (BufferUse& use : uses)
    if (use.buffer == output) use.buffer = input;
  set_uses(d.plan, head, uses);
  d.names = {name(plan, head), name(plan, norm)};
  d.messages = {"does not read what the final norm wrote"};
  return true;
}
bool layer_after_the_norm(const GoodPlan& good, Dice& dice, Damage& d) {
  const Plan& plan = good.plan;
  const std::size_t layer = any(forward_of(plan, Section::layers), dice), norm = norm_of(plan, layer);
  move_before(d.plan, norm, layer);
  d.names = {name(plan, layer), name(plan, norm)};
  d.messages = {"runs after the final norm"};
  return true;
}

}  // namespace

std::vector<DamageKind> of_step() {
  return {
      {"weight read after its update", weight_read_after_update, 60},
      {"weight not updated", weight_not_updated, 60},
      {"gradients of two updates swapped", gradients_of_updates_swapped, 55},
      {"weight updated twice", weight_updated_twice, 30},
      {"step out of order", step_out_of_order, 60},
      {"step value changed early", step_value_changed_early, 60},
      {"head skips the norm", head_skips_the_norm, 60},
      {"layer after the norm", layer_after_the_norm, 60},
  };
}

}  // namespace weft::damage
