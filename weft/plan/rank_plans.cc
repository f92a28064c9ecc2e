#include "weft/plan/rank_plans.h"

namespace weft {

RankPlans same_on_all_ranks(const Layout& layout, const Plan& plan, const MemoryPlan& memory) {
  RankPlans ranks;
  ranks.plans = {{plan, memory}};
  ranks.plan_of.assign(static_cast<std::size_t>(layout.ranks()), 0);
  for (std::size_t id = 0; id < plan.groups.size(); ++id)
    ranks.groups.push_back(layout.all_groups(GroupId(static_cast<std::int64_t>(id))));
  return ranks;
}

}  // namespace weft
