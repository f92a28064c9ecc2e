// Ranks that cannot be told apart, so that one stands for all of them (internal to the checker across ranks).
//
// Two ranks are of one kind when they run the same plan and every group of theirs is made of the same kinds. A circle
// of waits between kinds is one between ranks and the other way round: whoever follows it from rank to rank finds, in
// every group, a rank of the kind that comes next, and comes back to a rank it has seen.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "weft/plan/check_ranks.h"

namespace weft {

class RankKinds {
 public:
  // BugError where a group lacks a rank or has one twice.
  explicit RankKinds(const RankPlans& ranks);

  std::size_t count() const { return first_.size(); }
  std::int32_t kind_of(RankId rank) const { return kind_[rank.index()]; }
  RankId first_rank(std::size_t kind) const { return first_[kind]; }
  const RankPlans::Class& class_of(std::size_t kind) const;
  std::int32_t class_index(std::size_t kind) const { return ranks_.class_of[first_[kind].index()]; }

  bool has_group(const std::string& name) const { return group_of_.contains(name); }
  const RankGroup& group_of(const std::string& name, RankId rank) const;
  const RankGroup& group(const std::string& name, std::size_t kind) const { return group_of(name, first_[kind]); }
  // The kinds of that group's ranks, ascending, each once.
  std::vector<std::int32_t> kinds_in(const std::string& name, std::size_t kind) const;

 private:
  const RankPlans& ranks_;
  std::map<std::string, std::vector<std::int32_t>> group_of_;  // by name, by rank: index of its group
  std::vector<std::int32_t> kind_;                             // by rank
  std::vector<RankId> first_;                                  // by kind
};

// "ranks 0 to 3, 6"
std::string ranks_text(std::span<const RankId> ranks);

// A circle of waits between ranks and lanes, found by running the plans on paper: adds a fault naming who waits for
// whom. The collectives of a group must match.
void check_rendezvous(const RankPlans& ranks, const RankKinds& kinds, std::vector<PlanFault>& faults);

}  // namespace weft
