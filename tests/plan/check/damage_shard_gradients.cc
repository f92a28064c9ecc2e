// Damages of the gradients of divided parameters: their sums over ranks, the additions of these to the kept parts, the
// norm, the updates. Those of gathers: damage_shards.cc.
#include "tests/plan/check/damage_shard_edit.h"

namespace weft::damage {

namespace {

struct Reduction {
  CallAt at;
  NodeCollective call;
  std::size_t last_adder = 0;  // to what it sends
};
template <class Want>  // Want(reduction)
std::optional<Reduction> any_reduction(const GoodPlan& good, Dice& dice, const Want& want) {
  std::vector<Reduction> all;
  for (const CallAt& at : divisions(good.plan)) {
    const Reduction r{at, call_at(good.plan, at), *last_adder(good.plan, call_at(good.plan, at).send)};
    if (want(r)) all.push_back(r);
  }
  if (all.empty()) return {};
  return any(all, dice);
}
std::optional<Reduction> any_reduction(const GoodPlan& good, Dice& dice) {
  return any_reduction(good, dice, [](const Reduction&) { return true; });
}

// --- sums over ranks

bool reduction_missing(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto r = any_reduction(good, dice);
  if (!r) return false;
  erase(d.plan, r->at.node);
  d.names = {name(good.plan, r->last_adder), good.plan.name_of(r->call.send)};
  d.messages = {"is never reduced over ranks"};
  return true;
}
bool reduction_of_one_missing(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto r =
      any_reduction(good, dice, [&](const Reduction& x) { return good.plan.nodes[x.at.node].collectives > 1; });
  if (!r) return false;
  remove_call(d.plan, r->at);
  d.names = {name(good.plan, r->last_adder), good.plan.name_of(r->call.send)};
  d.messages = {"is never reduced over ranks"};
  return true;
}
bool reduce_before(const GoodPlan& good, const std::optional<Reduction>& r, Damage& d) {
  if (!r) return false;
  move_before(d.plan, r->at.node, r->last_adder);
  d.names = {name(good.plan, r->at.node), good.plan.name_of(r->call.send)};
  d.messages = {"is reduced after"};
  return true;
}
bool reduced_early(const GoodPlan& good, Dice& dice, Damage& d) {
  return reduce_before(good, any_reduction(good, dice), d);
}
bool reduced_before_a_delayed_gradient(const GoodPlan& good, Dice& dice, Damage& d) {
  if (!good.origin.options.delay_weight_gradients) return false;
  return reduce_before(
      good,
      any_reduction(good, dice,
                    [&](const Reduction& x) { return good.plan.nodes[x.last_adder].phase == Phase::weight_gradient; }),
      d);
}
bool reduced_twice(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto r = any_reduction(good, dice);
  if (!r) return false;
  insert_copy(d.plan, r->at.node, r->at.node + 1);
  d.names = {name(good.plan, r->at.node), good.plan.name_of(r->call.send)};
  d.messages = {"is reduced twice"};
  return true;
}
bool reduced_into_another(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto r = any_reduction(good, dice);
  if (!r) return false;
  const ValueInfo& own = good.plan.value_of(r->call.receive);
  const std::vector<BufferId> others = find_buffers(good.plan, [&](const ValueInfo& v) {
    return v.part == own.part && v.storage == own.storage && v.dtype == own.dtype && v.tensor != own.tensor;
  });
  if (others.empty()) return false;
  const BufferId other = any(others, dice);
  replace_in_call(d.plan, r->at, r->call.receive, other);
  d.names = {name(good.plan, r->at.node), good.plan.name_of(r->call.send), good.plan.name_of(other)};
  d.messages = {"is not a part of"};
  return true;
}
bool reduced_into_a_state(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto r = any_reduction(good, dice);
  if (!r) return false;
  const ValueInfo& own = good.plan.value_of(r->call.receive);
  const std::vector<BufferId> others = find_buffers(good.plan, [&](const ValueInfo& v) {
    return v.part == own.part && v.dtype == own.dtype && v.tensor == own.tensor && v.storage == StorageClass::state;
  });
  if (others.empty()) return false;
  const BufferId other = any(others, dice);
  replace_in_call(d.plan, r->at, r->call.receive, other);
  d.names = {name(good.plan, r->at.node), good.plan.name_of(r->call.send), good.plan.name_of(other)};
  d.messages = {"is not a part of"};
  return true;
}
bool reduced_over_other_ranks(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto r = any_reduction(good, dice);
  if (!r) return false;
  const GroupId wrong = other_group(good, r->call.group, dice);
  if (!wrong.valid()) return false;
  change_call(d.plan, r->at).group = wrong;
  d.names = {name(good.plan, r->at.node), good.plan.name_of(r->call.receive)};
  d.messages = {"runs over '" + good.plan.name_of(wrong) + "'"};
  return true;
}
// All that is declared of the gradient agrees, but other ranks hold its parameter.
bool divided_over_other_ranks(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto r = any_reduction(good, dice);
  if (!r) return false;
  const GroupId wrong = other_group(good, r->call.group, dice);
  const Layout layout = good.origin.layout();
  if (!wrong.valid() || layout.size_of(wrong) != layout.size_of(r->call.group)) return false;
  const auto value = [&](BufferId buffer) { return good.plan.buffers[buffer.index()].value; };
  for (const CallAt& at : divisions(good.plan)) {
    const NodeCollective& c = call_at(good.plan, at);
    if (value(c.send) != value(r->call.send)) continue;
    change_call(d.plan, at).group = wrong;
    d.plan.values[value(c.receive).index()].summed_over = wrong;
  }
  d.plan.values[value(r->call.send).index()].summed_over = wrong;
  d.names = {name(good.plan, r->last_adder), good.plan.name_of(r->call.send)};
  d.messages = {"hold its parameter"};
  return true;
}
bool contribution_written_over(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto r = any_reduction(good, dice);
  if (!r) return false;
  std::vector<BufferUse> uses = uses_of(good.plan, r->last_adder);
  for (BufferUse& use : uses)
    if (use.buffer == r->call.send) use = {use.buffer, Access::write, -1};
  set_uses(d.plan, r->last_adder, uses);
  d.names = {name(good.plan, r->last_adder), good.plan.name_of(r->call.send)};
  d.messages = {"gets contributions and is overwritten"};
  return true;
}
// Of different pieces, with the additions after them: each rank by itself is right.
bool reductions_swapped_on_one_rank(const GoodPlan& good, Dice& dice, Damage& d) {
  const Plan& plan = good.plan;
  const std::vector<std::size_t> nodes = find_nodes(plan, [&](const Node& n) {
    const auto list = plan.collectives_of(n);
    return !list.empty() && list.front().kind == CollectiveKind::reduce_scatter;
  });
  if (nodes.size() < 2) return false;
  const std::size_t at = size(dice.below(nodes.size() - 1));
  const std::size_t first = nodes[at], second = nodes[at + 1];
  const Node &a = plan.nodes[first], &b = plan.nodes[second];
  if (a.place == b.place || a.micro_batch != b.micro_batch ||
      plan.collectives_of(a).front().group != plan.collectives_of(b).front().group)
    return false;
  for (std::size_t i = first + 1; i < second; ++i)  // sums of statistics are on that lane too
    if (plan.nodes[i].lane == Lane::reduce && plan.nodes[i].collectives > 0) return false;
  const bool adds = plan.nodes[first + 1].kind == NodeKind::accumulate;
  for (const NodeCollective& sum : plan.collectives_of(a))
    for (const std::size_t reader : readers(plan, sum.receive))
      if (reader < second && !(adds && reader == first + 1)) return false;
  if (adds) {
    move_before(d.plan, first, second + 1);
    move_before(d.plan, first, second + 1);  // the addition, which is there now
  } else {
    move_before(d.plan, first, second + 1);
  }
  d.on_one_rank = true;
  d.names = {name(plan, first), name(plan, second)};
  d.messages = {"different nodes meet"};
  return true;
}

// --- additions to the kept parts

// A sum over ranks, and where an `accumulate` node adds it.
struct Addition {
  std::size_t node = 0, pair = 0;
  BufferId sum, kept;
  std::int32_t number = 0;
};
std::vector<Addition> additions(const Plan& plan) {
  std::vector<Addition> found;
  for (const std::size_t node : find_nodes(plan, [](const Node& n) { return n.kind == NodeKind::accumulate; })) {
    const auto uses = plan.uses_of(plan.nodes[node]);
    for (std::size_t i = 0; i + 1 < uses.size(); i += 2)
      found.push_back({node, i / 2, uses[i].buffer, uses[i + 1].buffer, uses[i + 1].contribution});
  }
  return found;
}
std::optional<Addition> any_addition(const GoodPlan& good, Dice& dice) {
  const std::vector<Addition> all = additions(good.plan);
  if (all.empty()) return {};
  return any(all, dice);
}

bool addition_missing(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto a = any_addition(good, dice);
  if (!a) return false;
  std::vector<BufferUse> uses = uses_of(good.plan, a->node);
  if (dice.yes() && uses.size() > 2) {  // of one tensor
    const auto at = uses.begin() + static_cast<std::ptrdiff_t>(2 * a->pair);
    uses.erase(at, at + 2);
    set_uses(d.plan, a->node, uses);
  } else {
    erase(d.plan, a->node);
  }
  d.names = {good.plan.name_of(a->sum)};
  d.messages = {"is written and never read"};
  return true;
}
bool added_to_another(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto a = any_addition(good, dice), b = any_addition(good, dice);
  if (!a || good.plan.value_of(a->kept).tensor == good.plan.value_of(b->kept).tensor) return false;
  replace_use(d.plan, a->node, a->kept, b->kept);
  d.names = {name(good.plan, a->node), good.plan.name_of(b->kept)};
  d.messages = {"is not a sum that belongs to"};
  return true;
}
bool added_out_of_order(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto a = any_addition(good, dice);
  if (!a) return false;
  for (const Addition& next : additions(good.plan)) {
    if (next.kept != a->kept || next.number != a->number + 1) continue;
    move_before(d.plan, a->node, next.node + 1);
    d.names = {name(good.plan, next.node), good.plan.name_of(a->kept)};
    d.messages = {"comes before contribution"};
    return true;
  }
  return false;
}
bool added_twice(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto a = any_addition(good, dice);
  if (!a) return false;
  insert_copy(d.plan, a->node, a->node + 1);
  d.names = {name(good.plan, a->node), good.plan.name_of(a->kept)};
  d.messages = {"is counted twice"};
  return true;
}
bool added_before_it_is_reduced(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto a = any_addition(good, dice);
  if (!a) return false;
  move_before(d.plan, a->node, users(good.plan, a->sum, Access::write).front());
  d.names = {name(good.plan, a->node), good.plan.name_of(a->sum)};
  d.messages = {"is read before it is written"};
  return true;
}
bool sum_of_another_micro_batch(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto a = any_addition(good, dice);
  if (!a || good.plan.buffers[a->sum.index()].micro_batch < 0) return false;
  std::vector<BufferId> others = instances_of(good.plan, good.plan.buffers[a->sum.index()].value);
  std::erase(others, a->sum);
  if (others.empty()) return false;
  const BufferId other = any(others, dice);
  replace_use(d.plan, a->node, a->sum, other);
  d.names = {name(good.plan, a->node), good.plan.name_of(other)};
  d.messages = {"belongs to a different micro-batch"};
  return true;
}

// --- instances of the optimizer: what they sum with each other, once per step

std::optional<CallAt> any_outer_sum(const GoodPlan& good, Dice& dice) {
  if (good.origin.instances == 1) return {};
  const GroupId between = good.origin.layout().instances();
  const std::vector<CallAt> sums = find_calls(good.plan, [&](const Node& n, const NodeCollective& c) {
    return n.micro_batch < 0 && c.group == between && c.kind != CollectiveKind::all_gather &&
           good.plan.value_of(c.send).part > 0;
  });
  if (sums.empty()) return {};
  return any(sums, dice);
}
bool outer_sum_missing(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto at = any_outer_sum(good, dice);
  if (!at) return false;
  const NodeCollective call = call_at(good.plan, *at);
  if (call.kind == CollectiveKind::reduce_scatter) {
    remove_call(d.plan, *at);
  } else {
    std::vector<BufferUse> uses = uses_of(good.plan, at->node);
    std::vector<NodeCollective> list = collectives_of(good.plan, at->node);
    std::erase_if(uses, [&](const BufferUse& use) { return use.buffer == call.send; });
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(at->collective));
    set_uses(d.plan, at->node, uses);
    set_collectives(d.plan, at->node, list);
    if (list.empty()) erase(d.plan, at->node);
  }
  d.names = {good.plan.name_of(call.send), name(good.plan, *last_adder(good.plan, call.send))};
  d.messages = {"is never reduced over ranks"};
  return true;
}
bool outer_sum_before_the_inner(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto at = any_outer_sum(good, dice);
  if (!at) return false;
  const BufferId sent = call_at(good.plan, *at).send;
  move_before(d.plan, at->node, *last_adder(good.plan, sent));
  d.names = {name(good.plan, at->node), good.plan.name_of(sent)};
  d.messages = {"is reduced after"};
  return true;
}
bool outer_sum_on_every_micro_batch(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto at = any_outer_sum(good, dice);
  if (!at) return false;
  const BufferId sent = call_at(good.plan, *at).send;
  std::vector<std::size_t> adders = users(good.plan, sent, Access::add);
  adders.pop_back();  // the sum at the end stays
  if (adders.empty()) return false;
  for (std::size_t i = adders.size(); i-- > 0;)
    d.plan.nodes.insert(d.plan.nodes.begin() + static_cast<std::ptrdiff_t>(adders[i]) + 1, good.plan.nodes[at->node]);
  d.names = {name(good.plan, at->node), good.plan.name_of(sent)};
  d.messages = {"is reduced twice"};
  return true;
}

// --- the norm and the updates

std::optional<At> any_squared_part(const GoodPlan& good, Dice& dice) {
  const std::vector<At> found = find_uses(good.plan, [&](const Node& n, const BufferUse& use) {
    return n.kind == NodeKind::sum_of_squares && use.access == Access::read && good.plan.value_of(use.buffer).part > 0;
  });
  if (found.empty()) return {};
  return any(found, dice);
}
bool norm_skips_a_part(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto at = any_squared_part(good, dice);
  if (!at) return false;
  remove_use(d.plan, *at);
  d.names = {name(good.plan, at->node), good.plan.name_of(use_at(good.plan, *at).buffer)};
  d.messages = {"is not counted in the norm"};
  return true;
}
bool norm_counts_a_part_twice(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto at = any_squared_part(good, dice);
  if (!at) return false;
  std::vector<BufferUse> uses = uses_of(good.plan, at->node);
  uses.insert(uses.begin(), use_at(good.plan, *at));
  set_uses(d.plan, at->node, uses);
  d.names = {name(good.plan, at->node), good.plan.name_of(use_at(good.plan, *at).buffer)};
  d.messages = {"is counted twice in the norm"};
  return true;
}
bool part_counted_as_whole(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto at = any_squared_part(good, dice);
  if (!at) return false;
  const BufferId part = use_at(good.plan, *at).buffer;
  d.plan.values[good.plan.buffers[part.index()].value.index()].norm_row = 0;
  d.names = {name(good.plan, at->node), good.plan.name_of(part)};
  d.messages = {"does not sum what each of them counts"};
  return true;
}
bool norm_of_other_ranks(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<Sum> sums = find_sums(good.plan, [](const ValueInfo& v) { return v.name == "squares"; });
  const auto at = any_squared_part(good, dice);
  if (sums.empty() || !at) return false;
  const BufferId squares = use_at(good.plan, {sums.front().node, 0}).buffer;
  const GroupId right = call_at(good.plan, {sums.front().node, 0}).group;
  const GroupId wrong = other_group(good, right, dice);
  const Layout layout = good.origin.layout();
  // Fewer ranks than before; more of them could all have been counted already.
  if (!wrong.valid() || layout.size_of(wrong) >= layout.size_of(right)) return false;
  const BufferId part = use_at(good.plan, *at).buffer;
  const ValueInfo& value = good.plan.value_of(part);
  bool all_counted = true;  // of this part, even so
  const RankGroup counted = layout.members_of(wrong);
  for (const ValueInfo& whole : good.plan.values)
    if (whole.storage == StorageClass::gathered && whole.tensor == value.tensor)
      for (const RankId rank : layout.members_of(whole.exchanged_over))
        all_counted &= std::find(counted.begin(), counted.end(), rank) != counted.end();
  if (all_counted) return false;
  d.plan.values[good.plan.buffers[squares.index()].value.index()].summed_over = wrong;
  change_call(d.plan, {sums.front().node, 0}).group = wrong;
  d.names = {name(good.plan, at->node), name(good.plan, sums.front().node), good.plan.name_of(part)};
  d.messages = {"does not sum what each of them counts", "which hold the same elements"};
  return true;
}
// Runs a node before the last sum over ranks of a gradient that it reads.
bool read_before_the_sum(const GoodPlan& good, std::size_t reader, BufferId gradient, Damage& d) {
  std::size_t sum = 0;
  for (const At& at : find_uses(good.plan, [&](const Node&n, const BufferUse&use) {
         return use.buffer == gradient && use.access != Access::read && n.phase == Phase::reduce;
       }))
    sum = at.node;
  if (good.plan.nodes[reader].carried) return false;  // it runs in the next step
  move_before(d.plan, reader, sum);
  d.names = {name(good.plan, reader), good.plan.name_of(gradient)};
  d.messages = {"is read after", "is read before it is reduced", "is read before it is written"};
  return true;
}
bool norm_before_the_sum(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto at = any_squared_part(good, dice);
  return at && read_before_the_sum(good, at->node, use_at(good.plan, *at).buffer, d);
}
std::optional<At> any_updated(const GoodPlan& good, Dice& dice, StorageClass of) {
  const std::vector<At> found = find_uses(good.plan, [&](const Node& n, const BufferUse& use) {
    return n.phase == Phase::update && n.piece.valid() && good.plan.value_of(use.buffer).part > 0 &&
           storage(good.plan, use.buffer) == of;
  });
  if (found.empty()) return {};
  return any(found, dice);
}
bool update_before_the_sum(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto at = any_updated(good, dice, StorageClass::gradient);
  return at && read_before_the_sum(good, at->node, use_at(good.plan, *at).buffer, d);
}
bool update_of_a_ranks_own_sum(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto at = any_updated(good, dice, StorageClass::gradient);
  if (!at) return false;
  const BufferId kept = use_at(good.plan, *at).buffer;
  const TensorId tensor = good.plan.value_of(kept).tensor;
  const std::vector<BufferId> own = find_buffers(
      good.plan, [&](const ValueInfo& v) { return v.storage == StorageClass::partial && v.tensor == tensor; });
  replace_use(d.plan, at->node, kept, own.front());
  d.names = {name(good.plan, at->node), good.plan.name_of(own.front())};
  d.messages = {"is one rank's own sum"};
  return true;
}
bool update_of_the_whole(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto at = any_updated(good, dice, StorageClass::weight);
  if (!at) return false;
  const BufferId part = use_at(good.plan, *at).buffer;
  const TensorId tensor = good.plan.value_of(part).tensor;
  const std::vector<BufferId> whole = find_buffers(good.plan, [&](const ValueInfo& v) {
    return v.storage == StorageClass::gathered && v.tensor == tensor && v.part == 0;
  });
  replace_use(d.plan, at->node, part, whole.front());
  d.names = {name(good.plan, at->node), good.plan.name_of(whole.front())};
  d.messages = {"is a gathered parameter, but a node that does not communicate writes it"};
  return true;
}
bool part_never_updated(const GoodPlan& good, Dice& dice, Damage& d) {
  const auto at = any_updated(good, dice, StorageClass::weight);
  if (!at) return false;
  remove_use(d.plan, *at);
  d.names = {name(good.plan, at->node), good.plan.name_of(use_at(good.plan, *at).buffer)};
  d.messages = {"gets a gradient and is never updated"};
  return true;
}

}  // namespace

std::vector<DamageKind> of_shard_gradients() {
  return {
      {"reduction missing", reduction_missing, 60},
      {"reduction of one tensor missing", reduction_of_one_missing, 50},
      {"reduced before the last contribution", reduced_early, 60},
      {"reduced before a delayed weight gradient", reduced_before_a_delayed_gradient, 20},
      {"reduced twice", reduced_twice, 60},
      {"reduced into the part of another", reduced_into_another, 60},
      {"reduced into a state", reduced_into_a_state, 40},
      {"reduced over other ranks", reduced_over_other_ranks, 60},
      {"gradient divided over other ranks", divided_over_other_ranks, 8},
      {"contribution written over", contribution_written_over, 60},
      {"reductions swapped on one rank", reductions_swapped_on_one_rank, 30},
      {"addition missing", addition_missing, 30},
      {"sum added to the part of another", added_to_another, 30},
      {"additions out of order", added_out_of_order, 20},
      {"sum added twice", added_twice, 30},
      {"sum added before it is reduced", added_before_it_is_reduced, 30},
      {"sum of another micro-batch added", sum_of_another_micro_batch, 20},
      {"sum over instances missing", outer_sum_missing, 10},
      {"sum over instances before the one within", outer_sum_before_the_inner, 10},
      {"sum over instances for every micro-batch", outer_sum_on_every_micro_batch, 5},
      {"norm skips a part", norm_skips_a_part, 30},
      {"norm counts a part twice", norm_counts_a_part_twice, 30},
      {"part counted as if it were whole", part_counted_as_whole, 30},
      {"norm of other ranks", norm_of_other_ranks, 15},
      {"norm before the sum over ranks", norm_before_the_sum, 30},
      {"update before the sum over ranks", update_before_the_sum, 40},
      {"update of a rank's own sum", update_of_a_ranks_own_sum, 60},
      {"update of the whole", update_of_the_whole, 60},
      {"part never updated", part_never_updated, 60},
  };
}

}  // namespace weft::damage
