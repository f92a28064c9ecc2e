// Plans of ranks that divide samples: good ones are accepted, damaged ones are not.
#include <algorithm>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/plan/random_plans.h"

namespace weft {
namespace {

constexpr ContextTransfer transfers[] = {ContextTransfer::p2p, ContextTransfer::all_gather, ContextTransfer::a2a,
                                         ContextTransfer::a2a_p2p};

StepPlan plan_of(ContextTransfer transfer, std::uint64_t seed, Layout& layout) {
  Dice dice(seed, "context");
  RandomCase c;
  c.pattern = dice.of({"*E", "[*E]-*/*", "M*E", "+-G", "D-"});
  c.options.micro_batches = 2;
  c.options.weave = c.options.delay_weight_gradients = dice.yes();
  StepOptions options = options_of(c);
  ModelConfig& config = options.config;
  config.attention.heads = config.latent_attention.heads = config.mamba.heads = config.delta_net.heads = 4;
  config.attention.kv_heads = config.mamba.groups = config.delta_net.key_heads = 4;
  options.module.length = 16;
  options.module.context_transfers = {transfer};
  options.module.sharding = dice.of({ShardingStrategy::no_shard, ShardingStrategy::optim_grads_params});
  layout = Layout::of({.cp = 4, .dp = 2, .ep = 2, .cp_heads = transfer == ContextTransfer::a2a_p2p ? 2 : 1});
  options.module.layout = layout;
  return plan_step(options);
}

// Two plans: `other` on rank 3.
RankPlans with_another(const Layout& layout, const StepPlan& step, const Plan& other) {
  RankPlans ranks = same_on_all_ranks(layout, step.plan, step.memory);
  ranks.plans.emplace_back(other, step.memory);
  ranks.plan_of[3] = 1;
  return ranks;
}

TEST(ContextPlans, are_accepted) {
  for (const ContextTransfer transfer : transfers)
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      Layout layout;
      const StepPlan step = plan_of(transfer, seed, layout);
      const auto faults = check_ranks(same_on_all_ranks(layout, step.plan, step.memory));
      ASSERT_TRUE(faults.empty()) << seed << ": " << faults.front().message;
    }
}

// Damages a plan; returns false where there is nothing of the kind. The message must contain `named`.
struct Damage {
  const char* named;
  bool (*apply)(Plan& plan, Dice& dice);
  bool on_all_ranks = false;
};

NodeCollective* of_kind(Plan& plan, std::initializer_list<CollectiveKind> kinds, Dice& dice) {
  std::vector<NodeCollective*> found;
  for (NodeCollective& c : plan.collectives)
    if (std::find(kinds.begin(), kinds.end(), c.kind) != kinds.end()) found.push_back(&c);
  return found.empty() ? nullptr : found[static_cast<std::size_t>(dice.below(found.size()))];
}

bool turned_round(Plan& plan, Dice& dice) {
  NodeCollective* c = of_kind(plan, {CollectiveKind::to_next, CollectiveKind::to_previous}, dice);
  if (c == nullptr) return false;
  c->kind = c->kind == CollectiveKind::to_next ? CollectiveKind::to_previous : CollectiveKind::to_next;
  return true;
}

bool into_what_it_sends(Plan& plan, Dice& dice) {
  NodeCollective* c = of_kind(plan, {CollectiveKind::to_next, CollectiveKind::to_previous}, dice);
  if (c == nullptr) return false;
  c->receive = c->send;
  return true;
}

bool without_a_transfer(Plan& plan, Dice& dice) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < plan.nodes.size(); ++i)
    if (plan.nodes[i].lane == Lane::tensor) found.push_back(i);
  plan.nodes.erase(plan.nodes.begin() +
                   static_cast<std::ptrdiff_t>(found[static_cast<std::size_t>(dice.below(found.size()))]));
  return true;
}

TEST(ContextPlans, are_rejected_once_damaged) {
  const Damage kinds[] = {{"to_", turned_round},
                          {"it cannot receive into what it sends", into_what_it_sends, true},
                          {"", without_a_transfer}};
  for (const Damage& kind : kinds) {
    int applied = 0;
    for (const ContextTransfer transfer : transfers)
      for (std::uint64_t seed = 0; seed < 4; ++seed) {
        Layout layout;
        const StepPlan step = plan_of(transfer, seed, layout);
        StepPlan damaged = step;
        Dice dice(seed, kind.named);
        if (!kind.apply(damaged.plan, dice)) continue;
        ++applied;
        const auto faults = check_ranks(kind.on_all_ranks ? same_on_all_ranks(layout, damaged.plan, damaged.memory)
                                                          : with_another(layout, step, damaged.plan));
        ASSERT_FALSE(faults.empty()) << kind.named << " seed " << seed;
        EXPECT_TRUE(std::any_of(faults.begin(), faults.end(), [&](const auto& fault) {
          return fault.message.find(kind.named) != std::string::npos;
        })) << faults.front().message;
      }
    EXPECT_GE(applied, 4) << kind.named;
  }
}

}  // namespace
}  // namespace weft
