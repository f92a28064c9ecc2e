// What the ranks of a LocalCluster share.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "weft/comm/activity.h"
#include "weft/comm/local/cluster.h"
#include "weft/comm/local/group.h"

namespace weft {

class LocalState {
 public:
  LocalState(int size, const LocalOptions& options);

  int size() const { return static_cast<int>(ranks_.size()); }

  // The first failure ends the run: returns true for it, false for later ones. Wakes every waiting rank.
  bool fail(RankId rank, const std::string& message);
  const std::atomic<bool>& ended() const { return ended_; }
  void throw_if_ended() const;
  std::optional<RankId> failed_rank() const;

  Activity& activity(RankId rank) { return ranks_[rank.index()]->activity; }
  std::vector<std::string> activities() const;
  void set_timeout(RankId rank, double seconds) { ranks_[rank.index()]->timeout.store(seconds); }
  double timeout(RankId rank) const { return ranks_[rank.index()]->timeout.load(); }
  Link* link(RankId rank) { return ranks_[rank.index()]->link ? &*ranks_[rank.index()]->link : nullptr; }

  // The group for the next call of `rank` with this name and these members: the n-th such call of every member returns
  // the same group.
  std::shared_ptr<LocalGroup> join_group(RankId rank, std::span<const RankId> members, const std::string& name);

 private:
  struct Rank {
    Activity activity;
    std::atomic<double> timeout{600};
    std::optional<Link> link;
  };
  using GroupKey = std::pair<std::string, std::vector<RankId>>;
  struct GroupEntry {
    std::map<RankId, std::size_t> made;                // how many each member has made
    std::vector<std::weak_ptr<LocalGroup>> instances;  // in the order they were made
  };

  std::vector<std::unique_ptr<Rank>> ranks_;
  std::atomic<bool> ended_{false};
  mutable std::mutex mutex_;  // guards everything below
  std::optional<std::pair<RankId, std::string>> failure_;
  std::map<GroupKey, GroupEntry> groups_;
};

}  // namespace weft
