#include "weft/train/rank_plans_check.h"

#include <map>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/plan/check/check_ranks.h"
#include "weft/plan/digest.h"
#include "weft/plan/text.h"
#include "weft/train/rank_agreement.h"

namespace weft {

namespace {

// Called by all ranks.
[[noreturn]] void throw_different_plans(const PreparedPlan& prepared, const RankExchange& ranks,
                                        std::span<const RankId> with) {
  const std::vector<std::string> lines = split(to_text(prepared.plan(), prepared.memory()), '\n');
  const std::optional<LineDifference> found = first_difference(ranks, lines, with);
  if (!found) throw BugError("ranks have different plans, whose text is the same: they run different versions of weft");
  throw BugError(fmt::format("ranks {} and {} have different plans, first in '{}' and '{}'", found->other.value,
                             found->rank.value, trim(found->on_other), trim(found->on_rank)));
}

}  // namespace

void check_plans_of_all_ranks(const PreparedPlan& prepared, const StepOptions& made_from, const RankExchange& ranks) {
  const Layout& layout = made_from.module.layout;
  std::map<int, RankId> first;  // of each class
  std::vector<RankId> with(static_cast<std::size_t>(layout.ranks()));
  for (int r = 0; r < layout.ranks(); ++r)
    with[static_cast<std::size_t>(r)] = first.try_emplace(layout.class_of(RankId(r)), RankId(r)).first->second;
  const auto own = static_cast<std::int64_t>(digest_of(prepared.plan()));
  const std::vector<std::int64_t> all = ranks.gather(std::span(&own, 1));
  for (std::size_t r = 0; r < with.size(); ++r)
    if (all[r] != all[with[r].index()]) throw_different_plans(prepared, ranks, with);
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
    plans.plans.emplace_back(made.plan, made.memory);
  }
  for (int r = 0; r < layout.ranks(); ++r)
    if (const auto at = index.find(layout.class_of(RankId(r))); at != index.end())
      plans.plan_of[static_cast<std::size_t>(r)] = at->second;
  require_valid(plans);
}

}  // namespace weft
