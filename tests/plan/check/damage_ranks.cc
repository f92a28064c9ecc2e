#include <fmt/format.h>

#include "tests/plan/check/damage_edit.h"

namespace weft::damage {

namespace {

// --- sums over ranks

bool sum_dropped(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<Sum> sums = gradient_sums(good.plan);
  if (sums.empty()) return false;
  const Sum sum = any(sums, dice);
  std::vector<NodeCollective> list = collectives_of(good.plan, sum.node);
  const BufferId buffer = list[sum.collective].send;
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(sum.collective));
  set_collectives(d.plan, sum.node, list);
  std::vector<BufferUse> uses = uses_of(good.plan, sum.node);
  std::erase_if(uses, [&](const BufferUse& use) { return use.buffer == buffer; });
  set_uses(d.plan, sum.node, uses);
  d.names = {good.plan.name_of(buffer), name(good.plan, *last_adder(good.plan, buffer))};
  d.messages = {"is never reduced over ranks"};
  return true;
}
bool sum_silent(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<Sum> sums = gradient_sums(good.plan);
  if (sums.empty()) return false;
  const Sum sum = any(sums, dice);
  std::vector<NodeCollective> list = collectives_of(good.plan, sum.node);
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(sum.collective));
  set_collectives(d.plan, sum.node, list);
  d.names = {name(good.plan, sum.node)};
  d.messages = {"does not communicate it", "communicates, but has no collectives"};
  return true;
}
bool summed_twice(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<Sum> sums = gradient_sums(good.plan);
  if (sums.empty()) return false;
  const Sum sum = any(sums, dice);
  const std::vector<std::size_t> others = find_nodes(
      good.plan, [&](const Node& node) { return node.phase == Phase::reduce && &node != &good.plan.nodes[sum.node]; });
  if (others.empty()) return false;
  const std::size_t other = any(others, dice);
  std::vector<NodeCollective> list = collectives_of(good.plan, other);
  list.push_back(collectives_of(good.plan, sum.node)[sum.collective]);
  std::vector<BufferUse> uses = uses_of(good.plan, other);
  uses.push_back({list.back().receive, Access::write, -1});
  set_collectives(d.plan, other, list);
  set_uses(d.plan, other, uses);
  d.names = {name(good.plan, sum.node), name(good.plan, other), good.plan.name_of(list.back().receive)};
  d.messages = {"is reduced twice"};
  return true;
}
bool summed_too_early(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<Sum> sums = gradient_sums(good.plan);
  if (sums.empty()) return false;
  const Sum sum = any(sums, dice);
  const BufferId buffer = collectives_of(good.plan, sum.node)[sum.collective].send;
  move_before(d.plan, sum.node, *last_adder(good.plan, buffer));
  d.names = {name(good.plan, sum.node), good.plan.name_of(buffer)};
  d.messages = {"is reduced after"};
  return true;
}
template <class Want>
bool summed_over_other_group(const GoodPlan& good, Dice& dice, Damage& d, const Want& want) {
  const std::vector<Sum> sums = find_sums(good.plan, want);
  if (sums.empty()) return false;
  const Sum sum = any(sums, dice);
  std::vector<NodeCollective> list = collectives_of(good.plan, sum.node);
  NodeCollective& c = list[sum.collective];
  const GroupId wrong = other_group(good, c.group, dice);
  if (!wrong.valid()) return false;
  c.group = wrong;
  set_collectives(d.plan, sum.node, list);
  d.names = {name(good.plan, sum.node), good.plan.name_of(c.receive)};
  d.messages = {"runs over '" + good.plan.name_of(wrong) + "'"};
  return true;
}
bool gradient_over_other_group(const GoodPlan& good, Dice& dice, Damage& d) {
  return summed_over_other_group(good, dice, d, is_gradient);
}
bool loss_over_other_group(const GoodPlan& good, Dice& dice, Damage& d) {
  return summed_over_other_group(good, dice, d, [](const ValueInfo& v) { return v.name.ends_with("loss"); });
}
bool router_losses_over_other_group(const GoodPlan& good, Dice& dice, Damage& d) {
  return summed_over_other_group(good, dice, d, [](const ValueInfo& v) { return v.name == "router_losses"; });
}
bool squares_over_other_group(const GoodPlan& good, Dice& dice, Damage& d) {
  return summed_over_other_group(good, dice, d, [](const ValueInfo& v) { return v.name == "squares"; });
}
bool statistics_over_other_group(const GoodPlan& good, Dice& dice, Damage& d) {
  return summed_over_other_group(good, dice, d,
                                 [](const ValueInfo& v) { return v.storage == StorageClass::activation; });
}
bool summed_from_other_row(const GoodPlan& good, Dice& dice, Damage& d) {
  const bool squares = dice.yes();
  const std::vector<Sum> sums = find_sums(good.plan, [&](const ValueInfo& v) {
    return v.shape[0] > 1 && (squares ? v.name == "squares" : v.storage == StorageClass::gradient);
  });
  if (sums.empty()) return false;
  const Sum sum = any(sums, dice);
  std::vector<NodeCollective> list = collectives_of(good.plan, sum.node);
  NodeCollective& c = list[sum.collective];
  c.first_row = 1 - c.first_row;  // dense squares are counted once for every expert rank; or a row is not summed
  set_collectives(d.plan, sum.node, list);
  d.names = {name(good.plan, sum.node), good.plan.name_of(c.receive)};
  d.messages = {fmt::format("from row {}, but", c.first_row)};
  return true;
}
// Value and collective agree with each other, but not with the ranks that hold the parameter.
bool gradient_of_other_ranks(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<Sum> sums = gradient_sums(good.plan);
  if (sums.empty()) return false;
  const Sum sum = any(sums, dice);
  std::vector<NodeCollective> list = collectives_of(good.plan, sum.node);
  NodeCollective& c = list[sum.collective];
  const BufferId buffer = c.receive;
  GroupId& group = d.plan.values[good.plan.buffers[buffer.index()].value.index()].summed_over;
  d.messages = {"hold its parameter"};
  group = dice.yes() ? other_group(good, group, dice) : GroupId{};
  if (group.valid()) {
    c.group = group;
    set_collectives(d.plan, sum.node, list);
    d.names = {name(good.plan, sum.node), good.plan.name_of(buffer)};
    return true;
  }
  if (list.size() == 1) return false;  // the reduction would have no collectives
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(sum.collective));
  set_collectives(d.plan, sum.node, list);
  std::vector<BufferUse> uses = uses_of(good.plan, sum.node);
  std::erase_if(uses, [&](const BufferUse& use) { return use.buffer == buffer; });
  set_uses(d.plan, sum.node, uses);
  d.names = {name(good.plan, *last_adder(good.plan, buffer)), good.plan.name_of(buffer)};
  return true;
}
bool sum_of_own_values(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<Sum> sums = find_sums(good.plan, [](const ValueInfo&) { return true; });
  if (sums.empty()) return false;
  const Sum sum = any(sums, dice);
  const BufferId buffer = collectives_of(good.plan, sum.node)[sum.collective].receive;
  d.plan.values[good.plan.buffers[buffer.index()].value.index()].summed_over = {};
  d.names = {name(good.plan, sum.node), good.plan.name_of(buffer)};
  d.messages = {"each rank has its own"};
  return true;
}
// Counts and rows, all over one wrong group: they match each other, but the experts are elsewhere.
bool exchanged_over_other_group(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<std::size_t> nodes =
      find_nodes(good.plan, [](const Node& node) { return node.lane == Lane::exchange && node.collectives > 0; });
  const GroupId wrong = other_group(good, good.origin.layout().expert_ranks(), dice);
  if (nodes.empty() || !wrong.valid()) return false;
  for (NodeCollective& c : d.plan.collectives)
    if (c.kind == CollectiveKind::all_to_all) c.group = wrong;
  d.names = {name(good.plan, any(nodes, dice))};
  d.messages = {"is exchanged over 'ep'"};
  return true;
}

// --- collectives of one rank against the others

bool sums_swapped_on_one_rank(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<Sum> sums = gradient_sums(good.plan);
  if (sums.empty()) return false;
  // Two nodes that share a group: the other ranks expect one and meet the other.
  const auto groups = [&](std::size_t node) {
    std::vector<GroupId> list;
    for (const NodeCollective& c : good.plan.collectives_of(good.plan.nodes[node])) list.push_back(c.group);
    return list;
  };
  const std::size_t a = any(sums, dice).node, b = any(sums, dice).node;
  if (a == b || groups(a).front() != groups(b).front()) return false;
  std::swap(d.plan.nodes[a], d.plan.nodes[b]);
  d.on_one_rank = true;
  // The first mismatch is at the position of whichever came first.
  d.names = {name(good.plan, a), name(good.plan, b)};
  d.messages = {"different nodes meet"};
  return true;
}
bool exchanges_swapped_on_one_rank(const GoodPlan& good, Dice& dice, Damage& d) {
  const Plan& plan = good.plan;
  const std::vector<std::size_t> exchanges =
      find_nodes(plan, [](const Node& node) { return node.lane == Lane::exchange && node.collectives > 0; });
  std::vector<std::pair<std::size_t, std::size_t>> free;  // neighbours on the lane that do not need each other
  for (std::size_t e = 0; e + 1 < exchanges.size(); ++e) {
    bool needed = false;
    for (const BufferUse& own : plan.uses_of(plan.nodes[exchanges[e]]))
      for (std::size_t i = exchanges[e] + 1; i <= exchanges[e + 1]; ++i)
        for (const BufferUse& use : plan.uses_of(plan.nodes[i]))
          needed |= own.access != Access::read && use.buffer == own.buffer;
    if (!needed) free.emplace_back(exchanges[e], exchanges[e + 1]);
  }
  if (free.empty()) return false;
  const auto [first, second] = any(free, dice);
  move_before(d.plan, first, second + 1);
  d.on_one_rank = true;
  d.names = {name(plan, first), name(plan, second)};
  d.messages = {"different nodes meet"};
  return true;
}
bool size_differs_on_one_rank(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<std::size_t> nodes = find_nodes(good.plan, [](const Node& node) { return node.collectives > 0; });
  if (nodes.empty()) return false;
  const std::size_t node = any(nodes, dice);
  const NodeCollective c = any(collectives_of(good.plan, node), dice);
  if (c.kind == CollectiveKind::all_to_all && !c.send_counts.valid()) return false;  // counts: as many as experts
  // What is added to a part must have its size.
  if (c.kind == CollectiveKind::all_reduce && good.plan.value_of(c.send).part > 0) return false;
  for (ValueId value : {good.plan.buffers[c.send.index()].value, good.plan.buffers[c.receive.index()].value}) {
    ValueInfo& v = d.plan.values[value.index()];
    Shape wider;
    for (int dim = 0; dim < v.shape.dims(); ++dim) wider.append(v.shape[dim] + (dim + 1 == v.shape.dims() ? 1 : 0));
    v.shape = wider;
    v.bytes = wider.elements() * static_cast<std::int64_t>(size_of(v.dtype));
    if (c.send == c.receive) break;
  }
  d.on_one_rank = true;
  // The first that carries one of these values, in any micro-batch.
  const auto value = [&](BufferId buffer) { return good.plan.buffers[buffer.index()].value; };
  const std::size_t first = find_nodes(good.plan, [&](const Node& n) {
                              for (const NodeCollective& other : good.plan.collectives_of(n))
                                for (BufferId buffer : {other.send, other.receive})
                                  if (value(buffer) == value(c.send) || value(buffer) == value(c.receive)) return true;
                              return false;
                            }).front();
  d.names = {name(good.plan, first)};
  d.messages = {" meets ", " goes to ", "does not consist of parts like"};
  return true;
}
bool rows_differ_on_one_rank(const GoodPlan& good, Dice& dice, Damage& d) {
  std::vector<Sum> sums;
  for (const Sum& sum : gradient_sums(good.plan))
    if (good.plan.value_of(collectives_of(good.plan, sum.node)[sum.collective].send).shape[0] > 1) sums.push_back(sum);
  if (sums.empty()) return false;
  const Sum sum = any(sums, dice);
  std::vector<NodeCollective> list = collectives_of(good.plan, sum.node);
  list[sum.collective].first_row = 1;
  const BufferId buffer = list[sum.collective].receive;
  d.plan.values[good.plan.buffers[buffer.index()].value.index()].first_summed_row = 1;
  set_collectives(d.plan, sum.node, list);
  d.on_one_rank = true;
  d.names = {name(good.plan, sum.node)};
  d.messages = {"sums begin at rows"};
  return true;
}
bool deadlock_on_one_rank(const GoodPlan& good, Dice& dice, Damage& d) {
  // A node that sums over two groups does so in reverse order on one rank: every communicator still sees its calls in
  // order, but the ranks wait for each other.
  const RandomCase& c = good.origin;
  // Groups within and between instances do not make such a circle.
  if (c.expert_ranks == 1 || c.expert_shards == 1 || c.instances > 1) return false;
  const std::vector<std::size_t> nodes = find_nodes(good.plan, [&](const Node& node) {
    const auto list = good.plan.collectives_of(node);
    return !list.empty() && list.front().group != list.back().group;
  });
  if (nodes.empty()) return false;
  const std::size_t node = any(nodes, dice);
  std::vector<NodeCollective> list = collectives_of(good.plan, node);
  const GroupId first = list.front().group;
  std::stable_partition(list.begin(), list.end(), [&](const NodeCollective& x) { return x.group != first; });
  set_collectives(d.plan, node, list);
  d.on_one_rank = true;
  d.names = {name(good.plan, node)};
  d.messages = {"wait for each other"};
  return true;
}

// --- what a collective carries

std::vector<std::size_t> counted_exchanges(const Plan& plan) {
  return find_nodes(plan, [&](const Node& node) {
    const auto list = plan.collectives_of(node);
    return !list.empty() && list.front().send_counts.valid();
  });
}

bool counts_not_exchanged(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<std::size_t> nodes = counted_exchanges(good.plan);
  if (nodes.empty()) return false;
  const std::size_t node = any(nodes, dice);
  std::vector<NodeCollective> list = collectives_of(good.plan, node);
  NodeCollective& c = list[size(dice.below(list.size()))];
  (dice.yes() ? c.receive_counts : c.send_counts) = dice.yes() ? c.send_counts : c.receive_counts;
  if (c.send_counts != c.receive_counts) return false;
  set_collectives(d.plan, node, list);
  d.names = {name(good.plan, node)};
  d.messages = {"were not exchanged"};
  return true;
}
// On all ranks: what each sends is still what the other expects, but the rows are the wrong ones.
bool counts_swapped(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<std::size_t> nodes = counted_exchanges(good.plan);
  if (nodes.empty()) return false;
  const std::size_t node = any(nodes, dice);
  std::vector<NodeCollective> list = collectives_of(good.plan, node);
  for (NodeCollective& c : list) std::swap(c.send_counts, c.receive_counts);
  set_collectives(d.plan, node, list);
  d.names = {name(good.plan, node), good.plan.name_of(list.back().send), good.plan.name_of(list.back().send_counts)};
  d.messages = {"are not laid out by"};
  return true;
}
bool counts_dropped(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<std::size_t> nodes = counted_exchanges(good.plan);
  if (nodes.empty()) return false;
  const std::size_t node = any(nodes, dice);
  std::vector<NodeCollective> list = collectives_of(good.plan, node);
  NodeCollective& c = list[size(dice.below(list.size()))];
  c.send_counts = c.receive_counts = {};
  set_collectives(d.plan, node, list);
  d.names = {name(good.plan, node), good.plan.name_of(c.send)};
  d.messages = {"has equal parts"};
  return true;
}
bool sends_what_it_does_not_use(const GoodPlan& good, Dice& dice, Damage& d) {
  const std::vector<std::size_t> nodes = find_nodes(good.plan, [](const Node& node) { return node.collectives > 0; });
  if (nodes.empty()) return false;
  const std::size_t node = any(nodes, dice);
  std::vector<NodeCollective> list = collectives_of(good.plan, node);
  const std::vector<BufferUse> own = uses_of(good.plan, node);
  const BufferId other(dice.below(good.plan.buffers.size()));
  for (const BufferUse& use : own)
    if (use.buffer == other) return false;
  list[size(dice.below(list.size()))].send = other;
  set_collectives(d.plan, node, list);
  d.names = {name(good.plan, node)};
  d.messages = {"does not use what it sends"};
  return true;
}

}  // namespace

std::vector<DamageKind> of_ranks() {
  return {
      {"sum over ranks dropped", sum_dropped, 40},
      {"sum over ranks silent", sum_silent, 40},
      {"summed twice", summed_twice, 40},
      {"summed too early", summed_too_early, 40},
      {"gradient over another group", gradient_over_other_group, 40},
      {"loss over another group", loss_over_other_group, 40},
      {"router losses over another group", router_losses_over_other_group, 30},
      {"squares over another group", squares_over_other_group, 30},
      {"statistics over another group", statistics_over_other_group, 15},
      {"summed from another row", summed_from_other_row, 40},
      {"gradient of other ranks", gradient_of_other_ranks, 40},
      {"sum of own values", sum_of_own_values, 40},
      {"exchanged over another group", exchanged_over_other_group, 30},
      {"sums swapped on one rank", sums_swapped_on_one_rank, 15},
      {"exchanges swapped on one rank", exchanges_swapped_on_one_rank, 8},
      {"size differs on one rank", size_differs_on_one_rank, 40},
      {"rows differ on one rank", rows_differ_on_one_rank, 40},
      {"deadlock by order of groups on one rank", deadlock_on_one_rank, 10},
      {"counts not exchanged", counts_not_exchanged, 10},
      {"counts swapped", counts_swapped, 30},
      {"counts dropped", counts_dropped, 30},
      {"sends what it does not use", sends_what_it_does_not_use, 40},
  };
}

}  // namespace weft::damage
