// Plans of ranks that divide layers: good ones are accepted, damaged ones are not.
#include <algorithm>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/plan/random_plans.h"

namespace weft {
namespace {

constexpr std::uint64_t plans = 60;

TEST(TensorPlans, are_accepted) {
  for (std::uint64_t seed = 0; seed < plans; ++seed) {
    const RandomCase c = random_tensor_case(seed);
    SCOPED_TRACE(c.text());
    const StepPlan step = step_of(c);
    const auto faults = check_ranks(same_on_all_ranks(c.layout(), step.plan, step.memory));
    ASSERT_TRUE(faults.empty()) << faults.front().message;
  }
}

// Damages `plan`; returns false where there is nothing of the kind.
using DamagePlan = bool (*)(const Layout& layout, Plan& plan, Dice& dice);

// A node of the tensor lane, by chance.
std::size_t tensor_node(const Plan& plan, Dice& dice) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < plan.nodes.size(); ++i)
    if (plan.nodes[i].lane == Lane::tensor) found.push_back(i);
  return found[static_cast<std::size_t>(dice.below(found.size()))];
}

bool without_a_transfer(const Layout&, Plan& plan, Dice& dice) {
  plan.nodes.erase(plan.nodes.begin() + static_cast<std::ptrdiff_t>(tensor_node(plan, dice)));
  return true;
}

bool over_another_group(const Layout& layout, Plan& plan, Dice& dice) {
  const Node& node = plan.nodes[tensor_node(plan, dice)];
  NodeCollective& c = plan.collectives[static_cast<std::size_t>(node.first_collective)];
  const GroupId other = layout.data_ranks();
  if (layout.members_of(other) == layout.members_of(c.group)) return false;
  c.group = other;
  return c.kind != CollectiveKind::all_gather || layout.size_of(other) != layout.size_of(layout.tensor_ranks());
}

bool before_what_it_sends(const Layout&, Plan& plan, Dice& dice) {
  const std::size_t at = tensor_node(plan, dice);
  const Node node = plan.nodes[at];
  const NodeCollective& c = plan.collectives[static_cast<std::size_t>(node.first_collective)];
  for (std::size_t i = at; i-- > 0;) {
    const auto uses = plan.uses_of(plan.nodes[i]);
    if (std::none_of(uses.begin(), uses.end(),
                     [&](const BufferUse& use) { return use.buffer == c.send && use.access != Access::read; }))
      continue;
    plan.nodes.erase(plan.nodes.begin() + static_cast<std::ptrdiff_t>(at));
    plan.nodes.insert(plan.nodes.begin() + static_cast<std::ptrdiff_t>(i), node);
    return true;
  }
  return false;
}

// A gradient of what all tensor ranks hold is summed over data ranks alone.
bool of_data_ranks_only(const Layout& layout, Plan& plan, Dice&) {
  const GroupId all = layout.stage_ranks(), some = layout.batch_ranks();
  if (layout.members_of(all) == layout.members_of(some)) return false;
  for (std::size_t v = 0; v < plan.values.size(); ++v) {
    ValueInfo& value = plan.values[v];
    if (value.storage != StorageClass::gradient || value.part > 0 || !value.summed_over.valid() ||
        layout.members_of(value.summed_over) != layout.members_of(all))
      continue;
    value.summed_over = some;
    for (NodeCollective& c : plan.collectives)
      if (plan.buffers[c.receive.index()].value.index() == v) c.group = some;
    return true;
  }
  return false;
}

bool without_a_row_of_the_norm(const Layout&, Plan& plan, Dice&) {
  for (Node& node : plan.nodes) {
    if (plan.place_of(node).piece != "squares" || node.collectives < 2) continue;
    --node.collectives;
    return true;
  }
  return false;
}

TEST(TensorPlans, are_rejected_once_damaged) {
  struct Kind {
    const char* name;
    DamagePlan damage;
    int least;  // plans to which it applies
  };
  const Kind kinds[] = {{"without a transfer", without_a_transfer, 60},
                        {"over another group", over_another_group, 15},
                        {"before what it sends", before_what_it_sends, 50},
                        {"of data ranks only", of_data_ranks_only, 10},
                        {"without a row of the norm", without_a_row_of_the_norm, 5}};
  for (const Kind& kind : kinds) {
    int applied = 0;
    for (std::uint64_t seed = 0; seed < plans; ++seed) {
      const RandomCase c = random_tensor_case(seed);
      StepPlan step = step_of(c);
      Dice dice(seed, kind.name);
      if (!kind.damage(c.layout(), step.plan, dice)) continue;
      ++applied;
      EXPECT_FALSE(check_ranks(same_on_all_ranks(c.layout(), step.plan, step.memory)).empty())
          << kind.name << ": " << c.text();
    }
    EXPECT_GE(applied, kind.least) << kind.name;
  }
}

}  // namespace
}  // namespace weft
