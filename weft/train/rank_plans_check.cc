#include "weft/train/rank_plans_check.h"

#include <map>

#include "weft/base/error.h"
#include "weft/plan/check/check_ranks.h"
#include "weft/plan/digest.h"

namespace weft {

void check_plans_of_all_ranks(const PreparedPlan& prepared, const StepOptions& made_from, const RankExchange& ranks) {
  const Layout& layout = made_from.module.layout;
  const auto own = static_cast<std::int64_t>(digest_of(prepared.plan()));
  const std::vector<std::int64_t> all = ranks.gather(std::span(&own, 1));
  std::map<int, RankId> first;  // of each class
  for (int r = 0; r < layout.ranks(); ++r) {
    const auto [at, is_new] = first.try_emplace(layout.class_of(RankId(r)), RankId(r));
    if (!is_new && all[static_cast<std::size_t>(r)] != all[at->second.index()])
      throw BugError(fmt::format("ranks {} and {} have different plans", at->second.value, r));
  }
  if (layout.rank().value != 0) return;

  std::map<int, StepPlan> others;
  for (const auto& [number, rank] : first) {
    if (rank == layout.rank()) continue;
    StepOptions options = made_from;
    options.module.layout = layout.seen_from(rank);
    const StepPlan& made = others.emplace(number, plan_step(options)).first->second;
    if (static_cast<std::int64_t>(digest_of(made.plan)) != all[rank.index()])
      throw BugError(fmt::format("rank {} has another plan than its layout gives it", rank.value));
  }
  RankPlans plans = same_on_all_ranks(layout, prepared.plan(), prepared.memory());
  std::map<int, std::int32_t> index;
  for (const auto& [number, made] : others) {
    index[number] = static_cast<std::int32_t>(plans.plans.size());
    plans.plans.push_back({&made.plan, &made.memory});
  }
  for (int r = 0; r < layout.ranks(); ++r)
    if (const auto at = index.find(layout.class_of(RankId(r))); at != index.end())
      plans.plan_of[static_cast<std::size_t>(r)] = at->second;
  require_valid(plans);
}

}  // namespace weft
