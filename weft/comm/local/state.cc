#include "weft/comm/local/state.h"

#include "weft/base/error.h"

namespace weft {

LocalState::LocalState(int size, const LocalOptions& options) {
  for (int rank = 0; rank < size; ++rank) {
    ranks_.push_back(std::make_unique<Rank>());
    ranks_.back()->timeout.store(options.timeout);
    if (options.network) ranks_.back()->link.emplace(*options.network);
  }
}

bool LocalState::fail(RankId rank, const std::string& message) {
  std::vector<std::shared_ptr<LocalGroup>> groups;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return false;
    failure_.emplace(rank, message);
    ended_.store(true);
    for (auto& [key, entry] : groups_)
      for (auto& instance : entry.instances)
        if (auto group = instance.lock()) groups.push_back(std::move(group));
  }
  for (const auto& group : groups) group->signal.notify();
  return true;
}

void LocalState::throw_if_ended() const {
  if (!ended_.load()) return;
  const std::lock_guard lock(mutex_);
  throw PeerError(failure_->first, failure_->second);
}

std::optional<RankId> LocalState::failed_rank() const {
  const std::lock_guard lock(mutex_);
  if (!failure_) return std::nullopt;
  return failure_->first;
}

std::vector<std::string> LocalState::activities() const {
  std::vector<std::string> texts;
  for (const auto& rank : ranks_) texts.push_back(rank->activity.text());
  return texts;
}

std::shared_ptr<LocalGroup> LocalState::join_group(RankId rank, std::span<const RankId> members,
                                                   const std::string& name) {
  const std::lock_guard lock(mutex_);
  GroupEntry& entry = groups_[GroupKey(name, std::vector<RankId>(members.begin(), members.end()))];
  const std::size_t nth = entry.made[rank]++;
  if (nth >= entry.instances.size()) entry.instances.resize(nth + 1);
  std::shared_ptr<LocalGroup> group = entry.instances[nth].lock();
  if (!group) {
    group = std::make_shared<LocalGroup>(static_cast<int>(members.size()));
    entry.instances[nth] = group;
  }
  return group;
}

}  // namespace weft
