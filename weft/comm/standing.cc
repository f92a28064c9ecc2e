#include "weft/comm/standing.h"

#include <algorithm>

#include "weft/base/error.h"
#include "weft/base/text.h"

namespace weft {

void Standing::set_status(std::function<std::string()> status) {
  const std::lock_guard lock(mutex_);
  status_ = std::move(status);
}

void Standing::add(const Communicator* group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(group);
}

void Standing::remove(const Communicator* group) {
  const std::lock_guard lock(mutex_);
  std::erase(groups_, group);
}

std::string Standing::text() const {
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
                           std::span<const std::string> standings) {
  std::string names;
  for (std::size_t i = 0; i < missing.size(); ++i)
    names += fmt::format("{}{}", i == 0 ? "" : i + 1 == missing.size() ? " and " : ", ", missing[i].value);
  std::string text =
      fmt::format("waited {:.1f} s in {} for rank{} {} (the timeout is {} s). Where the ranks stand:", waited, what,
                  missing.size() == 1 ? "" : "s", names, timeout);
  for (std::size_t rank = 0; rank < standings.size(); ++rank)
    text += fmt::format("\n  rank {}: {}", rank, standings[rank].empty() ? "gives no answer" : standings[rank]);
  return text;
}

int index_in_group(std::span<const RankId> members, RankId self, int size, const std::string& name) {
  for (std::size_t i = 0; i < members.size(); ++i) {
    WEFT_CHECK(members[i].valid() && members[i].value < size, "group '{}': there is no rank {} among {}", name,
               members[i].value, size);
    WEFT_CHECK(std::ranges::find(members.first(i), members[i]) == members.begin() + static_cast<std::ptrdiff_t>(i),
               "group '{}': rank {} is in it twice", name, members[i].value);
  }
  const auto found = std::ranges::find(members, self);
  WEFT_CHECK(found != members.end(), "group '{}': rank {} makes it and is not in it", name, self.value);
  return static_cast<int>(found - members.begin());
}

}  // namespace weft
