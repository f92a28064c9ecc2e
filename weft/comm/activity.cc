#include "weft/comm/activity.h"

#include "weft/base/error.h"
#include "weft/base/text.h"

namespace weft {

void Activity::set_status(std::function<std::string()> status) {
  const std::lock_guard lock(mutex_);
  status_ = std::move(status);
}

void Activity::add(const Communicator* group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(group);
}

void Activity::remove(const Communicator* group) {
  const std::lock_guard lock(mutex_);
  std::erase(groups_, group);
}

std::string Activity::text() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> parts;
  if (status_)
    if (std::string status = status_(); !status.empty()) parts.push_back(std::move(status));
  for (const Communicator* group : groups_)
    if (group->operation() != Operation::none) parts.push_back("in " + group->call_text());
  if (parts.empty()) return "not communicating";
  return join(parts, "; ");
}

std::string timeout_report(const std::string& what, double waited, double timeout, std::span<const RankId> missing,
                           std::span<const std::string> activities) {
  std::string names;
  for (std::size_t i = 0; i < missing.size(); ++i)
    names += fmt::format("{}{}", i == 0 ? "" : i + 1 == missing.size() ? " and " : ", ", missing[i].value);
  std::string text =
      fmt::format("waited {:.1f} s in {} for rank{} {} (the timeout is {} s). What each rank is doing:", waited, what,
                  missing.size() == 1 ? "" : "s", names, timeout);
  for (std::size_t rank = 0; rank < activities.size(); ++rank)
    text += fmt::format("\n  rank {}: {}", rank, activities[rank].empty() ? "no answer" : activities[rank]);
  return text;
}

}  // namespace weft
