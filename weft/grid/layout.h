// Which ranks there are, which of them this one is, and what each axis of the grid means. Groups are made here and named
// by id everywhere else: no other code spells an axis. Who holds which part of the model follows from this value.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weft/base/ids.h"
#include "weft/grid/grid.h"

namespace weft {

using GroupId = Id<struct GroupTag>;  // of a layout's groups: the same id on all its ranks

// Where a tensor's elements are: which dim is divided among the ranks of which group, and who else holds the same part.
struct Placement {
  struct Split {
    int dim = 0;
    GroupId over;
    bool operator==(const Split&) const = default;
  };
  std::vector<Split> splits;  // none: every rank holds the whole tensor
  GroupId replicas;           // ranks that hold the same elements; invalid: no other does
  bool operator==(const Placement&) const = default;
};

class Layout {
 public:
  Layout();  // one rank
  // The grid has the axes tp, cp, dp, pp and the expert view etp, ep, edp.
  Layout(const Grid& grid, RankId rank);
  // Data parallelism over all ranks; over the same ranks, experts divided among groups of `expert_ranks` neighbours.
  // UserError unless expert_ranks divides ranks.
  static Layout of_data_and_experts(std::int64_t ranks, std::int64_t expert_ranks, RankId rank = RankId(0));

  const Grid& grid() const { return *grid_; }
  RankId rank() const { return rank_; }
  int ranks() const { return grid_->size(); }
  Layout seen_from(RankId rank) const { return Layout(grid_, rank); }

  // The groups, by what they mean.
  GroupId data_ranks() const { return GroupId(0); }       // have different tokens and the same dense parameters
  GroupId expert_ranks() const { return GroupId(1); }     // hold different experts and exchange rows of tokens
  GroupId expert_replicas() const { return GroupId(2); }  // have different tokens and the same experts
  static constexpr int group_count = 3;

  const std::string& name_of(GroupId group) const;  // "dp": for messages, plans and communicators
  std::vector<std::string> group_names() const;     // by id
  int size_of(GroupId group) const;
  bool divides(GroupId group) const { return size_of(group) > 1; }
  int position_in(GroupId group) const;  // of this rank, from 0
  // The group of the ranks that are reached from this one by steps within these groups, which are independent of each
  // other; invalid where they reach no other rank.
  GroupId spanned_by(std::span<const GroupId> groups) const;
  RankGroup members_of(GroupId group) const;               // this rank's group
  std::vector<RankGroup> all_groups(GroupId group) const;  // of that id, over all ranks

  // Experts of a layer that this rank holds: `count` of them, from `first` on. `experts` must be divisible.
  struct ExpertRange {
    std::int64_t first = 0, count = 0;
  };
  ExpertRange experts_here(std::int64_t experts) const { return experts_at(position_in(expert_ranks()), experts); }
  ExpertRange experts_at(int position, std::int64_t experts) const;  // of a member of expert_ranks()
  int holder_of(std::int64_t expert, std::int64_t experts) const;    // its position in expert_ranks()
  // Of a tensor of dense parameters, or of one whose first dim counts experts.
  Placement placement_of(bool experts) const;
  // Of the ranks that hold the same elements, whether this one answers for them: writes them, counts them.
  bool owns(const Placement& placement) const;
  // The ranks that own anything, ascending.
  std::vector<RankId> owners() const;
  // Ranks of one class run the same plan.
  int class_of(RankId rank) const;
  // The number of this rank's micro-batch `index` among those of all ranks: micro-batches are dealt out in turn.
  std::int64_t shard_of(std::int64_t index) const;

  bool operator==(const Layout& other) const;

 private:
  Layout(std::shared_ptr<const Grid> grid, RankId rank) : grid_(std::move(grid)), rank_(rank) {}

  std::shared_ptr<const Grid> grid_;
  RankId rank_;
};

}  // namespace weft
