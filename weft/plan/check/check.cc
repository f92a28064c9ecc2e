#include "weft/plan/check/check.h"

#include <algorithm>

#include "weft/base/error.h"
#include "weft/plan/check/faults.h"

namespace weft {

std::vector<PlanFault> check_plan(const Plan& plan, const std::string& whose) {
  FaultList faults(plan, whose);
  check_indices(plan, faults);
  if (!faults.empty()) return faults.take();
  check_nodes(plan, faults);
  check_collectives(plan, faults);
  check_buffers(plan, faults);
  check_carried(plan, faults);
  check_norm(plan, faults);
  return faults.take();
}

void throw_faults(const std::string& what, const std::vector<PlanFault>& faults) {
  std::string text = fmt::format("{} has {} {}:", what, faults.size(), faults.size() == 1 ? "fault" : "faults");
  for (std::size_t i = 0; i < std::min<std::size_t>(faults.size(), 10); ++i) text += "\n  " + faults[i].message;
  throw BugError(text);
}

void require_valid(const Plan& plan, const std::string& made_by) {
  const std::vector<PlanFault> faults = check_plan(plan);
  if (!faults.empty()) throw_faults("the plan made by " + made_by, faults);
}

}  // namespace weft
