// The test of the checker: every kind of damage (damage.cc) is applied to 60 random good plans in which every rank holds
// whole parameters, to 60 in which ranks divide them, or to 60 of one stage of a pipeline; each must be caught, with a
// message that names what was damaged.
#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/plan/check/damage.h"

namespace weft {
namespace {

constexpr std::uint64_t plans = 60;

enum class Kind { whole, divided, staged };

GoodPlan good_plan(std::uint64_t seed, Kind kind) {
  GoodPlan good;
  seed += 1000000;
  good.origin = kind == Kind::divided  ? random_divided_case(seed)
                : kind == Kind::staged ? random_staged_case(seed)
                                       : random_case(seed);
  if (kind == Kind::staged) {
    good.all = std::make_shared<LayoutPlans>(options_of(good.origin));
    good.stage = Dice(seed, "stage").below(good.all->steps().size());
    const StepPlan& step = *good.all->steps()[static_cast<std::size_t>(good.stage)];
    good.plan = step.plan;
    good.memory = step.memory;
    return good;
  }
  StepPlan step = step_of(good.origin);
  good.plan = std::move(step.plan);
  good.memory = std::move(step.memory);
  return good;
}

RankPlans plans_of(const GoodPlan& good) {
  return good.all ? good.all->ranks() : same_on_all_ranks(good.origin.layout(), good.plan, good.memory);
}

std::vector<PlanFault> faults_of(const GoodPlan& good, const Damage& damage) {
  RankPlans ranks = plans_of(good);
  if (damage.on_one_rank) {
    ranks.plans.push_back({damage.plan, damage.memory});
    const auto last = std::find(ranks.plan_of.rbegin(), ranks.plan_of.rend(), good.stage);
    *last = static_cast<std::int32_t>(ranks.plans.size()) - 1;
  } else {
    ranks.plans[static_cast<std::size_t>(good.stage)] = {damage.plan, damage.memory};
  }
  return check_ranks(ranks);
}

// Whether a message contains the name of a node or buffer, not just as the beginning of a longer one.
bool names(const std::string& message, const std::string& name) {
  for (std::size_t at = message.find(name); at != std::string::npos; at = message.find(name, at + 1)) {
    const std::size_t end = at + name.size();
    if (end == message.size() || std::string_view(" \n,:").find(message[end]) != std::string_view::npos) return true;
  }
  return false;
}

void damage_plans(const std::vector<DamageKind>& kinds, Kind of) {
  std::vector<GoodPlan> good;
  for (std::uint64_t seed = 0; seed < plans; ++seed) {
    good.push_back(good_plan(seed, of));
    const auto faults = check_ranks(plans_of(good.back()));
    ASSERT_TRUE(faults.empty()) << good.back().origin.text() << "\n" << faults.front().message;
  }
  for (const DamageKind& kind : kinds) {
    int applied = 0;
    for (std::uint64_t seed = 0; seed < plans; ++seed) {
      const GoodPlan& g = good[seed];
      Damage damage;
      Dice dice(seed, kind.name);
      // A random place may not be breakable although the plan is: try a few times.
      bool broken = false;
      for (int attempt = 0; attempt < 8 && !broken; ++attempt) {
        damage = Damage{g.plan, g.memory, false, false, {}, {}};
        broken = kind.apply(g, dice, damage);
      }
      if (!broken) continue;
      if (damage.on_one_rank && g.origin.ranks() == g.origin.stages) continue;
      ++applied;
      if (!damage.keeps_memory) damage.memory = plan_memory(damage.plan);
      const std::vector<PlanFault> faults = faults_of(g, damage);
      const auto fits = [&](const PlanFault& fault) {
        const auto in_message = [&](const std::string& name) { return names(fault.message, name); };
        const auto holds = [&](const std::string& what) { return fault.message.find(what) != std::string::npos; };
        return std::all_of(damage.names.begin(), damage.names.end(), in_message) &&
               std::any_of(damage.messages.begin(), damage.messages.end(), holds);
      };
      if (std::any_of(faults.begin(), faults.end(), fits)) continue;
      std::string found;
      for (const PlanFault& fault : faults) found += "\n  " + fault.message;
      std::string wanted;
      for (const std::string& name : damage.names) wanted += " '" + name + "'";
      ADD_FAILURE() << kind.name << ", seed " << seed << ", " << g.origin.text() << "\nno message has '"
                    << damage.messages.front() << "' of" << wanted << " among " << faults.size() << ":"
                    << found.substr(0, 2000);
      break;
    }
    EXPECT_GE(applied, kind.least) << kind.name << ": too few of " << plans << " plans could be broken this way";
    testing::Test::RecordProperty(kind.name, applied);
  }
}

TEST(Mutation, every_damage_is_caught_and_named) { damage_plans(damage_kinds(), Kind::whole); }
TEST(Mutation, every_damage_of_divided_parameters_is_caught_and_named) {
  damage_plans(damage_kinds_of_divided(), Kind::divided);
}
TEST(Mutation, every_damage_beside_divided_parameters_is_caught_and_named) {
  std::vector<DamageKind> kinds = damage_kinds();
  for (DamageKind& kind : kinds) kind.least /= 3;  // many need gradients that are summed whole
  damage_plans(kinds, Kind::divided);
}

TEST(Mutation, every_damage_between_stages_is_caught_and_named) {
  damage_plans(damage_kinds_of_stages(), Kind::staged);
}

// The divided plans have every strategy, and every way of putting its nodes.
TEST(Mutation, divided_plans_are_of_all_kinds) {
  std::map<std::string, int> times;
  for (std::uint64_t seed = 0; seed < plans; ++seed) {
    const RandomCase c = good_plan(seed, Kind::divided).origin;
    ++times[std::string(name_of(c.sharding))];
    times["woven"] += c.options.weave;
    times["delayed"] += c.options.delay_weight_gradients;
    times["late updates"] += c.options.overlap_updates;
    times["early updates"] += c.options.overlap_updates && !c.clips;
    times["two buffers"] += c.options.two_buffers;
    times["whole units"] += !c.options.gather_by_piece;
    times["instances"] += c.instances > 1;
    times["divided over instances"] += c.over_instances && c.instances > 1;
    times["tied"] += c.tied;
    times["bf16"] += c.dtype == DType::bf16;
  }
  for (const auto& [what, count] : times) EXPECT_GE(count, 5) << what;
  EXPECT_EQ(times.size(), 13u);
}

// Brute force and the checker agree on whether two buffers that could be in use at once share memory.
TEST(Mutation, the_check_of_memory_agrees_with_brute_force) {
  int racing = 0, clean = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    RandomCase c = random_case(seed + 2000000);
    c.pattern = c.pattern.substr(0, 2) == "[*" || c.pattern.find('[') != std::string::npos ? "[*E]" : "E";
    c.options.micro_batches = std::min(c.options.micro_batches, 2);
    const StepPlan step = step_of(c);
    const GoodPlan g{c, step.plan, step.memory};
    ASSERT_TRUE(races(g.plan, g.memory).empty()) << c.text();
    Dice dice(seed, "offsets");
    for (int i = 0; i < 4; ++i) {  // two buffers change places, or one goes elsewhere
      MemoryPlan memory = g.memory;
      const auto a = static_cast<std::size_t>(dice.below(memory.offset.size()));
      const auto b = static_cast<std::size_t>(dice.below(memory.offset.size()));
      const auto movable = [&](std::size_t x) {
        const StorageClass s = g.plan.value_of(BufferId(static_cast<std::int64_t>(x))).storage;
        return (s == StorageClass::activation || s == StorageClass::scratch) && memory.offset[x] >= 0;
      };
      if (!movable(a) || !movable(b)) continue;
      memory.offset[a] = g.memory.offset[b];
      if (memory.offset[a] + g.plan.value_of(BufferId(static_cast<std::int64_t>(a))).bytes > memory.arena) continue;
      const bool race = !races(g.plan, memory).empty();
      ++(race ? racing : clean);
      EXPECT_EQ(!check_memory(g.plan, memory).empty(), race) << c.text() << " " << a << " " << b;
    }
  }
  EXPECT_GT(racing, 20);
  EXPECT_GT(clean, 5);
}

}  // namespace
}  // namespace weft
