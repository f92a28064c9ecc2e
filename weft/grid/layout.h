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

// What a tensor is, as far as that decides where it lies.
struct TensorKind {
  bool experts = false;       // its first dim counts experts
  int tensor_dim = -1;        // this dim is divided over tensor ranks (of experts: over expert tensor ranks); -1: none
  bool on_both_ends = false;  // the first and the last stage hold it: the embedding, where the last stage uses it too
};

// Sizes of all axes. dp counts all data ranks; `instances` cuts them into groups that shard for themselves.
struct LayoutSizes {
  std::int64_t tp = 1, cp = 1, dp = 1, pp = 1;
  std::int64_t etp = 1, ep = 1;
  std::int64_t instances = 1;
  std::int64_t cp_heads = 1;        // of cp, neighbours that exchange heads where others send each other keys
  bool stages_before_data = false;  // order of ranks: tp, cp, pp, dp instead of tp, cp, dp, pp

  std::int64_t ranks() const { return tp * cp * dp * pp; }
};

class Layout {
 public:
  Layout();  // one rank
  // The grid has the axes tp, cp (cut in cp_heads and cp where neighbours exchange heads), dp, instance, pp and the expert view etp, ep, edp, instance, pp.
  Layout(const Grid& grid, RankId rank);
  // UserError unless etp x ep divides tp x cp x dp, and the instances both dp and the replicas of experts.
  static Layout of(const LayoutSizes& sizes, RankId rank = RankId(0));
  // Data parallelism over all ranks; over the same ranks, experts divided among groups of `expert_ranks` neighbours.
  static Layout of_data_and_experts(std::int64_t ranks, std::int64_t expert_ranks, RankId rank = RankId(0));

  const Grid& grid() const { return *grid_; }
  RankId rank() const { return rank_; }
  int ranks() const { return grid_->size(); }
  Layout seen_from(RankId rank) const { return Layout(grid_, rank); }

  // The groups, by what they mean. Two meanings that every layout of these sizes gives the same ranks have one id.
  GroupId data_ranks() const;           // have different samples
  GroupId context_ranks() const;        // have different tokens of the same samples, and the same parameters
  GroupId head_ranks() const;           // of the context ranks, neighbours that exchange heads for tokens
  GroupId ring_ranks() const;           // of the context ranks, those that then have the same heads
  GroupId tensor_ranks() const;         // divide each layer and its tokens
  GroupId stages() const;               // divide the layers
  GroupId batch_ranks() const;          // have different tokens and the same dense parameters: data and context
  GroupId sample_ranks() const;         // have tokens of the same samples: tensor and context
  GroupId stage_ranks() const;          // all of one stage
  GroupId expert_ranks() const;         // hold different experts and exchange rows of tokens
  GroupId expert_tensor_ranks() const;  // divide each expert
  GroupId expert_parts() const;         // both: rows of tokens travel among them
  GroupId expert_replicas() const;      // have different tokens and the same experts
  GroupId instances() const;            // hold the same shard of what an instance divides
  GroupId embedding_stages() const;     // the first and the last stage, and their instances
  GroupId both_ends() const;  // the same with all their data and context ranks; invalid where they are one stage
  static constexpr int group_count = 19;

  // Over which ranks replicas divide what they hold, and which ranks then have the same part.
  struct ShardGroups {
    GroupId inner, outer;
  };
  ShardGroups shards_of(GroupId replicas) const;

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

  int stage() const { return grid_->coordinate(rank_, "pp"); }
  int stage_count() const { return grid_->axis_size("pp"); }

  Placement placement_of(const TensorKind& kind) const;
  // Of the ranks that hold the same elements, whether this one answers for them: writes them, counts them.
  bool owns(const Placement& placement) const;
  // The ranks that own anything where nothing is sharded, ascending.
  std::vector<RankId> owners() const;
  // Ranks of one class run the same plan.
  int class_of(RankId rank) const;
  // The number of this rank's micro-batch `index` among those of all ranks: micro-batches are dealt out in turn.
  std::int64_t shard_of(std::int64_t index) const;

  bool operator==(const Layout& other) const;

 private:
  Layout(std::shared_ptr<const Grid> grid, RankId rank) : grid_(std::move(grid)), rank_(rank) {}
  GroupId first_like(GroupId group) const;
  AxisNames axes_in_grid(GroupId group) const;
  AxisNames divided(const AxisNames& axes) const;
  bool on_an_end(RankId rank) const;

  std::shared_ptr<const Grid> grid_;
  RankId rank_;
};

}  // namespace weft
