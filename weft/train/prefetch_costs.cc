#include "weft/train/prefetch_costs.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "weft/base/text.h"
#include "weft/plan/divided_memory.h"
#include "weft/plan/passes/shard.h"
#include "weft/plan/rank_plans.h"

namespace weft {

namespace {

constexpr double bounds[] = {0.5, 1, 2, 4};  // mean units

// The same arithmetic is in every plan, whenever its weights are gathered.
Pricer remembering(const Pricer& pricer) {
  using Key = std::tuple<NodeKind, Phase, std::string>;
  return [&pricer, known = std::make_shared<std::map<Key, PieceCost>>()](const Module& module, const Plan& plan,
                                                                         const Node& node) {
    const auto [at, is_new] = known->try_emplace(Key{node.kind, node.phase, plan.place_of(node).name});
    if (is_new) at->second = pricer(module, plan, node);
    return at->second;
  };
}

std::vector<PrefetchCost> bounds_to_try(const PlanOptions& asked, std::int64_t mean) {
  std::vector<PrefetchCost> tried;
  const std::int64_t ahead = asked.gather_ahead >= 0 ? asked.gather_ahead : mean;
  const auto is_chosen = [&](const PrefetchCost& c) {
    return c.by_piece == asked.gather_by_piece && (c.mean_units == 0) == asked.two_buffers &&
           (asked.two_buffers || c.elements == ahead);
  };
  const auto add = [&](double units, std::int64_t elements, bool by_piece) {
    PrefetchCost cost;
    cost.mean_units = units;
    cost.elements = elements;
    cost.by_piece = by_piece;
    cost.chosen = is_chosen(cost);
    tried.push_back(cost);
  };
  for (const bool by_piece : {true, false}) {
    for (const double units : bounds) add(units, std::llround(units * static_cast<double>(mean)), by_piece);
    add(0, 0, by_piece);
  }
  if (std::none_of(tried.begin(), tried.end(), [](const PrefetchCost& c) { return c.chosen; }))
    add(static_cast<double>(ahead) / static_cast<double>(mean), ahead, asked.gather_by_piece);
  return tried;
}

}  // namespace

std::vector<PrefetchCost> prefetch_costs(const Module& module, const PlanOptions& asked, const Pricer& pricer,
                                         const Cluster& cluster) {
  const std::int64_t mean = elements_of_mean_unit(module);
  if (module.sharding != ShardingStrategy::optim_grads_params || mean == 0) return {};
  std::vector<PrefetchCost> costs = bounds_to_try(asked, mean);
  const Pricer once = remembering(pricer);
  for (PrefetchCost& cost : costs) {
    PlanOptions options = asked;
    options.gather_by_piece = cost.by_piece;
    options.two_buffers = cost.mean_units == 0;
    if (!options.two_buffers) options.gather_ahead = cost.elements;
    Plan plan = build_plan(module, options);
    price(plan, module, once);
    const MemoryPlan memory = plan_memory(plan);
    const DividedMemory divided = divided_memory(plan, memory);
    cost.gathered = divided.gathered;
    cost.units = divided.units;
    cost.memory = memory.total();
    cost.seconds = estimate_step(same_on_all_ranks(module.layout, plan, memory), cluster).seconds;
  }
  return costs;
}

std::string to_text(std::span<const PrefetchCost> costs) {
  if (costs.empty()) return "";
  std::string text = fmt::format("  {:<38}{:>12}{:>7}{:>14}{:>12}\n", "prefetch: gathered before their use, at most",
                                 "gathered", "units", "memory", "step");
  for (const PrefetchCost& c : costs) {
    const std::string bound = c.mean_units == 0 ? "two units of each direction"
                                                : fmt::format("{:.3g} x the mean unit, {}", c.mean_units,
                                                              human_count(static_cast<double>(c.elements)));
    text += fmt::format("  {} {:<42}{:>12}{:>7}{:>14}{:>12}\n", c.chosen ? '*' : ' ',
                        fmt::format("{}, by {}", bound, c.by_piece ? "piece" : "unit"),
                        human_bytes(static_cast<double>(c.gathered)), c.units,
                        human_bytes(static_cast<double>(c.memory)), fmt::format("{:.4g} ms", c.seconds * 1e3));
  }
  text.pop_back();
  return text;
}

Json to_json(std::span<const PrefetchCost> costs) {
  Json list = Json::array();
  for (const PrefetchCost& c : costs) {
    Json bound = c.mean_units == 0
                     ? Json{{"two_buffers", true}}
                     : Json{{"two_buffers", false}, {"mean_units", c.mean_units}, {"elements_ahead", c.elements}};
    bound.update(Json{{"by_piece", c.by_piece},
                      {"chosen", c.chosen},
                      {"gathered", c.gathered},
                      {"units_at_peak", c.units},
                      {"memory", c.memory},
                      {"step_seconds", c.seconds}});
    list.push_back(bound);
  }
  return list;
}

}  // namespace weft
