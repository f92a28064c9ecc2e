// Classes of indistinguishable ranks: one rank represents its class.
//
// Two ranks are in one class if they run the same plan, their groups consist of the same classes, and, in groups where
// they have transfers, they have the same position and peers of the same classes. Whatever happens on one rank of a
// class happens on all of them at the same time. A cycle of waits between classes is one between ranks and vice versa:
// following it from rank to rank, every group has a rank of the next class, and at some point a rank repeats.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "weft/plan/rank_plans.h"

namespace weft {

class RankClasses {
 public:
  // BugError if a group names a rank that does not exist, or names one twice. Keeps a reference to `ranks`.
  explicit RankClasses(const RankPlans& ranks);

  std::size_t count() const { return first_.size(); }
  std::int32_t class_of(RankId rank) const { return class_[rank.index()]; }
  RankId first_rank(std::size_t c) const { return first_[c]; }
  std::int64_t ranks_in(std::size_t c) const { return sizes_[c]; }
  const RankPlans::Entry& plan_of(std::size_t c) const { return ranks_.plans[static_cast<std::size_t>(plan_index(c))]; }
  std::int32_t plan_index(std::size_t c) const { return ranks_.plan_of[first_[c].index()]; }

  bool has_group(GroupId group, std::size_t c) const { return group_index(group, first_[c]) >= 0; }
  const RankGroup& group_of(GroupId group, RankId rank) const;
  const RankGroup& group(GroupId group, std::size_t c) const { return group_of(group, first_[c]); }
  // The classes of that group's ranks, ascending, each once.
  std::vector<std::int32_t> classes_in(GroupId group, std::size_t c) const;

 private:
  std::int32_t group_index(GroupId group, RankId rank) const {  // -1: none
    return group.index() < group_of_.size() ? group_of_[group.index()][rank.index()] : -1;
  }
  void refine();

  const RankPlans& ranks_;
  std::vector<std::vector<std::int32_t>> group_of_;  // by GroupId, by rank: index of its group; -1: none
  std::vector<std::vector<std::int32_t>> position_;  // by GroupId, by rank: its place in its group; -1: none
  std::vector<std::int32_t> class_;                  // by rank
  std::vector<RankId> first_;                        // by class
  std::vector<std::int64_t> sizes_;                  // by class
};

// "ranks 0 to 3, 6"
std::string ranks_text(std::span<const RankId> ranks);

}  // namespace weft
