// Damages of the gathers and releases of divided parameters. Those of their gradients: damage_shard_gradients.cc.
//
// The bugs of other systems (shared/reference, sharding, section 5) as damages, by their names in the lists of kinds:
//   INV-1   parts not aligned      unrepresentable: shard_parameters alone makes parts, of whole rows, at multiples of 128
//                                  bytes (ShardLayout); "parts that do not cover a parameter"
//   INV-2   hooks bypassed         "gather missing", "gather too late", "released before the last use", "use of what an
//                                  earlier pass gathered", "gathered while it is gathered", "gathered and never used";
//                                  memory taken before other lanes are done with it: damage_memory.cc
//   INV-3   fused op skips hooks   residencies follow from what nodes use: "gather of one tensor missing"
//   INV-4   gradient hook elsewhere "contribution missing" (damage_nodes.cc), "reduced before a delayed weight gradient"
//   INV-5   reduced twice or never "reduction missing", "reduction of one tensor missing", "reduced twice", "reduced before
//                                  the last contribution", "addition missing", "sum added twice"
//   INV-6   overwritten sums       "contribution written over", "additions out of order"; a gradient's memory lives from
//                                  its first contribution on (ShardBounds)
//   INV-7   recomputed twice       "node twice" (damage_nodes.cc), all of damage_recompute.cc
//   INV-8   padded twice           "counts swapped", "counts dropped" (damage_ranks.cc); what fills parts up is in no result
//                                  (ShardLayout)
//   INV-9   scale of experts       "gradient of other ranks" (damage_ranks.cc), "gradient divided over other ranks"
//   INV-10  names in checkpoints   not in a plan: tests/checkpoint
//   INV-11  activations differ     not in a plan: tests/device
//   INV-12  norm of other ranks    "norm skips a part", "norm counts a part twice", "norm of other ranks", "part counted as
//                                  if it were whole"
//   INV-13  routing on the module  "buffer of another micro-batch" (damage_nodes.cc)
//   INV-14  shared values          "read between contributions" (damage_nodes.cc)
//   INV-15  final norm skipped     "head skips the norm", "layer after the norm" (damage_step.cc)
//   INV-16  router's statistics    "router losses over another group" (damage_ranks.cc); slots are numbered by layer
//   INV-17  options without effect not in a plan: tests/train/options_*_test.cc
//   INV-18  contexts dropped       unrepresentable: nodes have all they need in their uses
#include "tests/plan/check/damage_shard_edit.h"
#include "weft/plan/passes/overlap_updates.h"

namespace weft::damage {

namespace {

struct Gather {
  CallAt at;
  NodeCollective call;
  std::size_t user = 0, last_user = 0, release = 0;
};
std::optional<Gather> any_gather(const GoodPlan& good, Dice& dice) {
  const std::vector<CallAt> all = gathers(good.plan);
  if (all.empty()) return {};
  Gather found{any(all, dice), {}};
  found.call = call_at(good.plan, found.at);
  const std::vector<std::size_t> users = readers(good.plan, found.call.receive);
  found.user = users.front();
  found.last_user = users.back();
  found.release = releases_of(good.plan, found.call.receive).front();
  return found;
}
std::string buffer_name(const GoodPlan& good, const Gather& g) { return good.plan.name_of(g.call.receive); }

// --- gathers

bool gather_missing(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto g = any_gather(good, dice);
  if (!g) return false;
  erase(d.plan, g->at.node);
  d.names = {name(good.plan, g->user), buffer_name(good, *g)};
  d.messages = {"is used while it is not gathered"};
  return true;
}
bool gather_of_one_missing(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto g = any_gather(good, dice);
  if (!g || good.plan.nodes[g->at.node].collectives < 2) return false;
  remove_call(d.plan, g->at);
  d.names = {name(good.plan, g->user), buffer_name(good, *g)};
  d.messages = {"is used while it is not gathered"};
  return true;
}
bool gather_too_late(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto g = any_gather(good, dice);
  if (!g) return false;
  move_before(d.plan, g->at.node, g->user + 1);
  d.names = {name(good.plan, g->user), buffer_name(good, *g)};
  d.messages = {"is used while it is not gathered"};
  return true;
}
bool gathered_twice(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto g = any_gather(good, dice);
  if (!g) return false;
  insert_copy(d.plan, g->at.node, g->user + 1);
  d.names = {name(good.plan, g->at.node), buffer_name(good, *g)};
  d.messages = {"is gathered twice"};
  return true;
}
bool gathered_after_release(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto g = any_gather(good, dice);
  if (!g) return false;
  insert_copy(d.plan, g->at.node, g->release + 1);
  d.names = {name(good.plan, g->at.node), buffer_name(good, *g)};
  d.messages = {"is never released"};
  return true;
}
bool gathered_and_never_used(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto g = any_gather(good, dice);
  if (!g) return false;
  for (const std::size_t user : readers(good.plan, g->call.receive)) {
    std::vector<BufferUse> uses = uses_of(good.plan, user);
    std::erase_if(uses, [&](const BufferUse& use) { return use.buffer == g->call.receive; });
    set_uses(d.plan, user, uses);
  }
  d.names = {name(good.plan, g->at.node), name(good.plan, g->release), buffer_name(good, *g)};
  d.messages = {"is gathered and never used"};
  return true;
}
// Replaces what the gather sends.
bool gathered_from(const GoodPlan& good, const Gather& g, BufferId other, Damage& d) {
  replace_in_call(d.plan, g.at, g.call.send, other);
  d.names = {name(good.plan, g.at.node), good.plan.name_of(other), buffer_name(good, g)};
  d.messages = {"is not a part of"};
  return true;
}
bool gathered_from_another(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto g = any_gather(good, dice);
  if (!g) return false;
  const ValueInfo& part = good.plan.value_of(g->call.send);
  const std::vector<BufferId> others = find_buffers(good.plan, [&](const ValueInfo& v) {
    return v.part == part.part && v.storage == part.storage && v.tensor != part.tensor && v.dtype == part.dtype;
  });
  return !others.empty() && gathered_from(good, *g, any(others, dice), d);
}
bool gathered_from_a_gradient(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto g = any_gather(good, dice);
  if (!g) return false;
  const ValueInfo& part = good.plan.value_of(g->call.send);
  const std::vector<BufferId> others = find_buffers(good.plan, [&](const ValueInfo& v) {
    return v.part == part.part && v.tensor == part.tensor && v.dtype == part.dtype &&
           (v.storage == StorageClass::gradient || v.storage == StorageClass::state);
  });
  return !others.empty() && gathered_from(good, *g, any(others, dice), d);
}
bool gathered_into_another_instance(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto g = any_gather(good, dice);
  if (!g) return false;
  std::vector<BufferId> others = instances_of(good.plan, good.plan.buffers[g->call.receive.index()].value);
  std::erase(others, g->call.receive);
  if (others.empty()) return false;
  replace_in_call(d.plan, g->at, g->call.receive, any(others, dice));
  d.names = {name(good.plan, g->user), buffer_name(good, *g)};
  d.messages = {"is used while it is not gathered"};
  return true;
}
bool gathered_over_other_ranks(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto g = any_gather(good, dice);
  if (!g) return false;
  const GroupId wrong = other_group(good, g->call.group, dice);
  if (!wrong.valid()) return false;
  change_call(d.plan, g->at).group = wrong;
  d.names = {name(good.plan, g->at.node), buffer_name(good, *g)};
  d.messages = {"runs over '" + good.plan.name_of(wrong) + "'"};
  return true;
}
// The gathers and what their parameter declares agree, but its gradient goes to other ranks, or there are fewer or more
// parts than ranks.
bool divided_over_other_ranks(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto g = any_gather(good, dice);
  if (!g) return false;
  const ValueId whole = good.plan.buffers[g->call.receive.index()].value;
  const ValueInfo& value = good.plan.value_of(g->call.receive);
  const GroupId right = g->call.group, wrong = other_group(good, right, dice);
  if (!wrong.valid()) return false;
  d.plan.values[whole.index()].exchanged_over = wrong;
  for (const CallAt& at : gathers(good.plan))
    if (good.plan.buffers[call_at(good.plan, at).receive.index()].value == whole) change_call(d.plan, at).group = wrong;
  const std::vector<BufferId> gradients = find_buffers(good.plan, [&](const ValueInfo& v) {
    return v.storage == StorageClass::partial && v.tensor == value.tensor && v.part == value.part;
  });
  const Layout layout = good.origin.layout();
  if (gradients.empty() && layout.size_of(wrong) == layout.size_of(right)) return false;  // frozen: only sizes show it
  d.names = {gradients.empty() ? buffer_name(good, *g) : good.plan.name_of(gradients.front())};
  d.messages = {"one for each rank of", "divide its parameter"};
  return true;
}
bool parts_do_not_cover(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto g = any_gather(good, dice);
  if (!g) return false;
  ValueInfo& part = d.plan.values[good.plan.buffers[g->call.send.index()].value.index()];
  ValueInfo& whole = d.plan.values[good.plan.buffers[g->call.receive.index()].value.index()];
  const auto width = static_cast<std::int64_t>(size_of(part.dtype));
  const std::int64_t ranks = good.origin.layout().size_of(g->call.group);
  const std::int64_t elements = (whole.shape.elements() - 1) / ranks;
  if (elements < 1 || part.storage != StorageClass::weight) return false;
  part.bytes = elements * width;
  whole.bytes = ranks * part.bytes;
  d.names = {name(good.plan, g->at.node), good.plan.name_of(g->call.send)};
  d.messages = {"do not hold all of"};
  return true;
}
bool parts_of_another_size(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto g = any_gather(good, dice);
  if (!g) return false;
  d.plan.values[good.plan.buffers[g->call.send.index()].value.index()].bytes += 128;
  d.names = {name(good.plan, g->at.node), buffer_name(good, *g)};
  d.messages = {"does not consist of parts like", "one for each rank of"};
  return true;
}
// Of a weight that the previous step's update, left to this one, has not changed yet.
bool stale_gather(const GoodPlan& good, Dice& dice, Damage& d) {
  const Plan late = overlap_updates(good.plan);
  const std::vector<std::size_t> updates = find_nodes(late, [](const Node& n) { return n.carried; });
  if (updates.empty()) return false;
  const std::size_t update = any(updates, dice);
  std::vector<BufferId> weights;
  for (const BufferUse& use : late.uses_of(late.nodes[update]))
    if (use.access == Access::write && storage(late, use.buffer) == StorageClass::weight &&
        late.value_of(use.buffer).part > 0)
      weights.push_back(use.buffer);
  if (weights.empty()) return false;
  const BufferId weight = any(weights, dice);
  const std::size_t gather = readers(late, weight).front();
  d.plan = late;
  move_before(d.plan, gather, 0);
  d.names = {name(late, update), name(late, gather), late.name_of(weight)};
  d.messages = {"is read before its update of the previous step"};
  return true;
}
// Every communicator still sees its calls in order, but one rank makes two of them the other way round.
bool gathers_swapped_on_one_rank(const GoodPlan& good, Dice& dice, Damage& d) {
  const Plan& plan = good.plan;
  const std::vector<std::size_t> nodes =
      find_nodes(plan, [&](const Node& n) { return n.lane == Lane::gather && n.collectives > 0; });
  if (nodes.size() < 2) return false;
  const std::size_t at = size(dice.below(nodes.size() - 1));
  const std::size_t first = nodes[at], second = nodes[at + 1];
  const auto a = plan.collectives_of(plan.nodes[first]), b = plan.collectives_of(plan.nodes[second]);
  if (a.front().group != b.front().group) return false;
  for (const NodeCollective& made : a)
    for (const NodeCollective& needed : b)
      if (made.receive == needed.send) return false;
  for (std::size_t i = first; i < second; ++i)  // the second's memory may be in use until then
    if (plan.nodes[i].kind == NodeKind::release) return false;
  move_before(d.plan, second, first);
  d.on_one_rank = true;
  d.names = {name(plan, first), name(plan, second)};
  d.messages = {"different nodes meet"};
  return true;
}

// --- releases

bool release_missing(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto g = any_gather(good, dice);
  if (!g) return false;
  erase(d.plan, g->release);
  d.names = {name(good.plan, g->at.node), name(good.plan, g->last_user), buffer_name(good, *g)};
  d.messages = {"is never released"};
  return true;
}
bool released_early(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto g = any_gather(good, dice);
  if (!g) return false;
  move_before(d.plan, g->release, g->last_user);
  d.names = {name(good.plan, g->release), name(good.plan, g->last_user), buffer_name(good, *g)};
  d.messages = {"is used after it is released"};
  return true;
}
bool released_late(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto g = any_gather(good, dice);
  if (!g) return false;
  const std::vector<std::size_t> computing = find_nodes(good.plan, [&](const Node& n) {
    return n.kind == NodeKind::compute && n.lane == Lane::compute && &n > &good.plan.nodes[g->release];
  });
  if (computing.empty()) return false;
  move_before(d.plan, g->release, computing.front() + 1);
  d.names = {name(good.plan, g->release), name(good.plan, g->last_user), buffer_name(good, *g)};
  d.messages = {"stays gathered past its last use"};
  return true;
}
bool released_twice(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto g = any_gather(good, dice);
  if (!g) return false;
  insert_copy(d.plan, g->release, g->release + 1);
  d.names = {name(good.plan, g->release), buffer_name(good, *g)};
  d.messages = {"is released twice"};
  return true;
}
bool part_released(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto g = any_gather(good, dice);
  if (!g || storage(good.plan, g->call.send) != StorageClass::weight) return false;
  replace_use(d.plan, g->release, g->call.receive, g->call.send);
  d.names = {name(good.plan, g->release), good.plan.name_of(g->call.send)};
  d.messages = {"which is not a gathered parameter"};
  return true;
}
bool other_instance_released(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto g = any_gather(good, dice);
  if (!g) return false;
  std::vector<BufferId> others = instances_of(good.plan, good.plan.buffers[g->call.receive.index()].value);
  std::erase(others, g->call.receive);
  if (others.empty()) return false;
  replace_use(d.plan, g->release, g->call.receive, any(others, dice));
  d.names = {name(good.plan, g->at.node), buffer_name(good, *g)};
  d.messages = {"is never released"};
  return true;
}
bool use_of_what_was_released(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto g = any_gather(good, dice);
  if (!g) return false;
  std::vector<BufferId> gone = instances_of(good.plan, good.plan.buffers[g->call.receive.index()].value);
  std::erase_if(gone, [&](BufferId other) { return releases_of(good.plan, other).front() >= g->user; });
  if (gone.empty()) return false;
  const BufferId other = any(gone, dice);
  replace_use(d.plan, g->user, g->call.receive, other);
  d.names = {name(good.plan, g->user), good.plan.name_of(other)};
  d.messages = {"is used after it is released"};
  return true;
}

}  // namespace

std::vector<DamageKind> of_shards() {
  return {
      {"gather missing", gather_missing, 60},
      {"gather of one tensor missing", gather_of_one_missing, 50},
      {"gather too late", gather_too_late, 60},
      {"gathered while it is gathered", gathered_twice, 60},
      {"gathered after its release", gathered_after_release, 60},
      {"gathered and never used", gathered_and_never_used, 60},
      {"gathered from the parts of another", gathered_from_another, 50},
      {"gathered from a gradient or a state", gathered_from_a_gradient, 30},
      {"gathered into another instance", gathered_into_another_instance, 20},
      {"gathered over other ranks", gathered_over_other_ranks, 60},
      {"divided over other ranks", divided_over_other_ranks, 60},
      {"parts that do not cover a parameter", parts_do_not_cover, 50},
      {"parts of another size", parts_of_another_size, 60},
      {"gather of a stale weight", stale_gather, 40},
      {"gathers swapped on one rank", gathers_swapped_on_one_rank, 30},
      {"release missing", release_missing, 60},
      {"released before the last use", released_early, 60},
      {"released long after the last use", released_late, 50},
      {"released twice", released_twice, 60},
      {"part released", part_released, 50},
      {"another instance released", other_instance_released, 20},
      {"use of what an earlier pass gathered", use_of_what_was_released, 20},
  };
}

}  // namespace weft::damage
