// A pass may insert nodes and buffers. The one here divides a parameter between two ranks, gathers it where a node
// needs it, releases it, and scatters the sum of its gradient. The checker accepts the plan and names every kind of
// damage.
#include <algorithm>
#include <functional>

#include <gtest/gtest.h>

#include "tests/plan/plans.h"
#include "weft/plan/check/check_ranks.h"
#include "weft/plan/text.h"

namespace weft {
namespace {

constexpr const char* weight_name = "main.1-.up_weight";

// A plan, and the parts of it that belong to the divided parameter.
struct Divided {
  StepPlan step;
  ValueId weight, part, gradient, gradient_part;
  BufferId gradient_buffer, gradient_part_buffer;
};

ValueId value_named(const Plan& plan, const std::string& name) {
  for (std::size_t i = 0; i < plan.values.size(); ++i)
    if (plan.values[i].name == name) return ValueId(static_cast<std::int64_t>(i));
  return {};
}
BufferId buffer_of(const Plan& plan, ValueId value) {
  for (std::size_t i = 0; i < plan.buffers.size(); ++i)
    if (plan.buffers[i].value == value) return BufferId(static_cast<std::int64_t>(i));
  return {};
}

// The pass. The full weight becomes a gathered parameter with one instance per node that reads it.
void divide(Divided& d, const Layout& layout) {
  Plan& plan = d.step.plan;
  const GroupId data = layout.data_ranks();
  const int ranks = layout.size_of(data);
  const auto part_of = [&](ValueId of, StorageClass storage) {
    ValueInfo part = plan.values[of.index()];
    part.name = "part(" + part.name + ")";
    part.storage = storage;
    part.shape = {part.shape.elements() / ranks};
    part.bytes /= ranks;
    part.part = 1;
    return plan.add_value(part);
  };
  d.weight = value_named(plan, weight_name);
  d.gradient = value_named(plan, std::string("d(") + weight_name + ")");
  const BufferId whole = buffer_of(plan, d.weight);
  d.gradient_buffer = buffer_of(plan, d.gradient);
  d.part = part_of(d.weight, StorageClass::weight);
  d.gradient_part = part_of(d.gradient, StorageClass::gradient);
  plan.values[d.weight.index()].storage = StorageClass::gathered;
  plan.values[d.weight.index()].exchanged_over = data;
  const BufferId part = plan.add_buffer(d.part);
  d.gradient_part_buffer = plan.add_buffer(d.gradient_part);
  const PlaceId gather = plan.add_place(3, "unit.3", "gather"), release = plan.add_place(3, "unit.3", "release");

  std::vector<Node> nodes;
  std::int32_t instances = 0;
  for (Node node : plan.nodes) {
    const auto uses =
        std::span(plan.uses).subspan(static_cast<std::size_t>(node.first_use), static_cast<std::size_t>(node.uses));
    const auto of_weight = std::find_if(uses.begin(), uses.end(), [&](const auto& u) { return u.buffer == whole; });
    if (node.phase == Phase::update) {
      for (BufferUse& use : uses) {
        if (use.buffer == whole) use.buffer = part;
        if (use.buffer == d.gradient_buffer) use.buffer = d.gradient_part_buffer;
      }
    } else if (of_weight != uses.end()) {
      const BufferId full = instances == 0 ? whole : plan.add_buffer(d.weight, -1, instances);
      ++instances;
      of_weight->buffer = full;
      NodeCollective c{CollectiveKind::all_gather, data, part, full};
      const std::vector<BufferUse> used{{part}, {full, Access::write}};
      nodes.push_back(plan.make_node(NodeKind::communicate, node.phase, Lane::gather, gather, node.micro_batch, used,
                                     std::span(&c, 1)));
      nodes.push_back(node);
      nodes.push_back(plan.make_node(NodeKind::release, node.phase, Lane::gather, release, node.micro_batch,
                                     std::vector<BufferUse>{{full, Access::write}}));
      continue;
    }
    std::vector<BufferUse> kept;
    std::vector<NodeCollective> communication;
    for (const BufferUse& use : plan.uses_of(node))
      if (node.phase != Phase::reduce || use.buffer != d.gradient_buffer) kept.push_back(use);
    for (const NodeCollective& c : plan.collectives_of(node))
      if (c.receive != d.gradient_buffer) communication.push_back(c);
    if (communication.size() < static_cast<std::size_t>(node.collectives)) {
      communication.push_back({CollectiveKind::reduce_scatter, data, d.gradient_buffer, d.gradient_part_buffer});
      kept.push_back({d.gradient_buffer});
      kept.push_back({d.gradient_part_buffer, Access::write});
      node = plan.make_node(node.kind, node.phase, node.lane, node.place, -1, kept, communication);
    }
    nodes.push_back(node);
  }
  plan.nodes = std::move(nodes);
  d.step.memory = plan_memory(plan);
}

Divided divided() {
  Divided d;
  PlanOptions options;
  options.micro_batches = 2;
  OptimizerSpec optimizer;
  optimizer.clip = 0;
  const Layout layout = Layout::of_data_and_experts(2, 1);
  d.step = small_step("*--", options, layout, optimizer);
  divide(d, layout);
  return d;
}

std::vector<std::size_t> find(const Plan& plan, const std::function<bool(const Node&)>& want) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < plan.nodes.size(); ++i)
    if (want(plan.nodes[i])) found.push_back(i);
  return found;
}
std::size_t gather_at(const Plan& plan) {
  return find(plan, [](const Node& n) { return n.lane == Lane::gather && n.kind == NodeKind::communicate; })[1];
}
std::size_t release_at(const Plan& plan) {
  return find(plan, [](const Node& n) { return n.kind == NodeKind::release; })[1];
}
// The node that sums the gradient, with its last collective.
std::size_t scatter_at(const Plan& plan) {
  return find(plan, [&](const Node& n) {
    const auto list = plan.collectives_of(n);
    return !list.empty() && list.back().kind == CollectiveKind::reduce_scatter;
  })[0];
}
void move(Plan& plan, std::size_t from, std::size_t to) {
  const Node node = plan.nodes[from];
  plan.nodes.erase(plan.nodes.begin() + static_cast<std::ptrdiff_t>(from));
  plan.nodes.insert(plan.nodes.begin() + static_cast<std::ptrdiff_t>(to > from ? to - 1 : to), node);
}
void erase(Plan& plan, std::size_t at) { plan.nodes.erase(plan.nodes.begin() + static_cast<std::ptrdiff_t>(at)); }
void repeat(Plan& plan, std::size_t at, std::size_t to) {
  plan.nodes.insert(plan.nodes.begin() + static_cast<std::ptrdiff_t>(to), plan.nodes[at]);
}
NodeCollective& last_collective(Plan& plan, std::size_t node) {
  const Node& n = plan.nodes[node];
  return plan.collectives[static_cast<std::size_t>(n.first_collective + n.collectives - 1)];
}

TEST(InsertedNodes, a_gather_a_release_and_a_reduce_scatter_are_accepted) {
  const Divided d = divided();
  const std::vector<PlanFault> faults = check_ranks(d.step.ranks());
  for (const PlanFault& fault : faults) ADD_FAILURE() << fault.message;
  const std::string text = to_text(d.step.plan, d.step.memory);
  EXPECT_NE(text.find("all_gather over dp: part(main.1-.up_weight) -> main.1-.up_weight#1"), std::string::npos);
  EXPECT_NE(text.find("reduce_scatter over dp: d(main.1-.up_weight) -> part(d(main.1-.up_weight))"), std::string::npos);
}

TEST(InsertedNodes, gathered_parameters_have_lifetimes_in_the_arena) {
  const Divided d = divided();
  const Plan& plan = d.step.plan;
  int instances = 0;
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    if (plan.buffers[i].value != d.weight) continue;
    ++instances;
    const Lifetime life = d.step.memory.lifetimes[i];
    EXPECT_GE(d.step.memory.offset[i], 0);
    EXPECT_EQ(plan.nodes[static_cast<std::size_t>(life.first)].lane, Lane::gather);
    EXPECT_EQ(plan.nodes[static_cast<std::size_t>(life.last)].kind, NodeKind::release);
  }
  EXPECT_EQ(instances, 4);  // forward and backward of two micro-batches
}

struct Damage {
  const char* name;
  const char* message;
  std::function<void(Divided&)> damage;
};
class DamagedNodes : public testing::TestWithParam<Damage> {};

TEST_P(DamagedNodes, are_named_by_the_checker) {
  Divided d = divided();
  GetParam().damage(d);
  d.step.memory = plan_memory(d.step.plan);
  const std::vector<PlanFault> faults = check_ranks(d.step.ranks());
  std::string all;
  for (const PlanFault& fault : faults) all += fault.message + "\n";
  EXPECT_NE(all.find(GetParam().message), std::string::npos) << all;
}

INSTANTIATE_TEST_SUITE_P(
    Each, DamagedNodes,
    testing::Values(
        Damage{"gather_missing", "main.1-.up_weight#1 is used while it is not gathered",
               [](Divided& d) { erase(d.step.plan, gather_at(d.step.plan)); }},
        Damage{"gathered_twice", "main.1-.up_weight#1 is gathered twice",
               [](Divided& d) { repeat(d.step.plan, gather_at(d.step.plan), gather_at(d.step.plan)); }},
        Damage{"gathered_on_the_compute_lane", "communicates on lane compute, which computes",
               [](Divided& d) { d.step.plan.nodes[gather_at(d.step.plan)].lane = Lane::compute; }},
        Damage{"gathered_from_parts_that_do_not_fit", "is not 2 parts like",
               [](Divided& d) {
                 d.step.plan.values[d.part.index()].shape = {4};
                 d.step.plan.values[d.part.index()].bytes = 16;
               }},
        Damage{"gathered_over_one_rank", "is not 1 parts like",
               [](Divided& d) {
                 const GroupId one = d.step.module.layout.expert_ranks();
                 d.step.plan.values[d.weight.index()].exchanged_over = one;
                 for (NodeCollective& c : d.step.plan.collectives)
                   if (c.kind == CollectiveKind::all_gather) c.group = one;
               }},
        Damage{"release_missing", "main.1-.up_weight#1 is never released",
               [](Divided& d) { erase(d.step.plan, release_at(d.step.plan)); }},
        Damage{"released_too_early", "main.1-.up_weight#1 is used after it is released",
               [](Divided& d) { move(d.step.plan, release_at(d.step.plan), release_at(d.step.plan) - 1); }},
        Damage{"released_too_late", "main.1-.up_weight#1 stays gathered past its last use",
               [](Divided& d) { move(d.step.plan, release_at(d.step.plan), release_at(d.step.plan) + 3); }},
        Damage{"released_twice", "main.1-.up_weight#1 is released twice",
               [](Divided& d) { repeat(d.step.plan, release_at(d.step.plan), release_at(d.step.plan)); }},
        Damage{
            "release_of_what_is_not_gathered", "which is not a gathered parameter",
            [](Divided& d) {
              d.step.plan.uses[static_cast<std::size_t>(d.step.plan.nodes[release_at(d.step.plan)].first_use)].buffer =
                  d.gradient_part_buffer;
            }},
        Damage{"sum_missing", "d(main.1-.up_weight) is never reduced over ranks",
               [](Divided& d) { erase(d.step.plan, scatter_at(d.step.plan)); }},
        Damage{"summed_twice", "d(main.1-.up_weight) is reduced twice",
               [](Divided& d) { repeat(d.step.plan, scatter_at(d.step.plan), scatter_at(d.step.plan)); }},
        Damage{"summed_before_the_last_contribution", "d(main.1-.up_weight) is reduced after 1 of its 2 contributions",
               [](Divided& d) {
                 const Plan& plan = d.step.plan;
                 const auto adds = find(plan, [&](const Node& n) {
                   const auto uses = plan.uses_of(n);
                   return std::any_of(uses.begin(), uses.end(), [&](const BufferUse& u) {
                     return u.buffer == d.gradient_buffer && u.access == Access::add;
                   });
                 });
                 move(d.step.plan, scatter_at(plan), adds.back());
               }},
        Damage{"summed_over_others", "is summed over 'dp'",
               [](Divided& d) {
                 last_collective(d.step.plan, scatter_at(d.step.plan)).group = d.step.module.layout.expert_ranks();
               }},
        Damage{"update_reads_the_whole_gradient", "part(d(main.1-.up_weight)) is never used by an update",
               [](Divided& d) {
                 for (const Node& node : d.step.plan.nodes)
                   for (std::int32_t u = 0; node.phase == Phase::update && u < node.uses; ++u)
                     if (BufferUse& use = d.step.plan.uses[static_cast<std::size_t>(node.first_use + u)];
                         use.buffer == d.gradient_part_buffer)
                       use.buffer = d.gradient_buffer;
               }}),
    [](const auto& damage) { return std::string(damage.param.name); });

// The same collectives in a different order on one of the ranks.
TEST(InsertedNodes, two_ranks_that_gather_in_different_orders_are_named) {
  const Divided d = divided();
  Divided other = divided();
  const auto gathers = find(other.step.plan, [](const Node& n) {
    return n.lane == Lane::gather && n.kind == NodeKind::communicate && n.phase == Phase::forward;
  });
  ASSERT_EQ(gathers.size(), 2u);
  std::swap(other.step.plan.nodes[gathers[0]].micro_batch, other.step.plan.nodes[gathers[1]].micro_batch);
  RankPlans ranks = d.step.ranks();
  ranks.plans.push_back(RankPlans::Entry::without_memory(other.step.plan));
  ranks.plan_of[1] = 1;
  const std::vector<PlanFault> faults = check_ranks(ranks);
  ASSERT_FALSE(faults.empty());
  EXPECT_NE(faults.front().message.find("different nodes meet"), std::string::npos) << faults.front().message;
}

}  // namespace
}  // namespace weft
