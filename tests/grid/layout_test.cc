// Who holds what: groups, experts, owners and classes of ranks.
#include "weft/grid/layout.h"

#include <gtest/gtest.h>

#include "weft/base/error.h"

namespace weft {
namespace {

TEST(Layout, OneRankOwnsEverything) {
  const Layout layout;
  EXPECT_EQ(layout.owners(), std::vector<RankId>{RankId(0)});
  EXPECT_TRUE(layout.owns(layout.placement_of({})));
  EXPECT_TRUE(layout.owns(layout.placement_of({.experts = true})));
}

// Four ranks, experts over pairs: rank 0 owns what all hold, and ranks 0 and 1 the experts that 2 and 3 hold too.
TEST(Layout, TheFirstReplicaOwnsAParameter) {
  const Layout layout = Layout::of_data_and_experts(4, 2);
  EXPECT_EQ(layout.owners(), (std::vector<RankId>{RankId(0), RankId(1)}));
  for (int r = 0; r < 4; ++r) {
    const Layout there = layout.seen_from(RankId(r));
    EXPECT_EQ(there.owns(there.placement_of({})), r == 0) << r;
    EXPECT_EQ(there.owns(there.placement_of({.experts = true})), r < 2) << r;
    EXPECT_EQ(there.experts_here(8).first, r % 2 == 0 ? 0 : 4) << r;
    EXPECT_EQ(there.experts_here(8).count, 4) << r;
  }
  const Placement experts = layout.placement_of({.experts = true});
  EXPECT_EQ(experts.splits, (std::vector<Placement::Split>{{0, layout.expert_ranks()}}));
  EXPECT_EQ(experts.replicas, layout.expert_replicas());
}

TEST(Layout, RanksOfAStageAreOneClass) {
  const Layout flat = Layout::of_data_and_experts(4, 2);
  for (int r = 0; r < 4; ++r) EXPECT_EQ(flat.class_of(RankId(r)), 0);
  const Layout stages(
      Grid({{"tp", 1}, {"cp", 1}, {"dp", 2}, {"pp", 3}}, {{"etp", 1}, {"ep", 2}, {"edp", 1}, {"pp", 3}}), RankId(0));
  for (int r = 0; r < 6; ++r) EXPECT_EQ(stages.class_of(RankId(r)), r / 2) << r;
}

TEST(Layout, FindsTheGroupThatOthersSpan) {
  const Layout layout = Layout::of_data_and_experts(8, 2, RankId(3));
  const auto spanned = [&](std::vector<GroupId> groups) { return layout.spanned_by(groups); };
  EXPECT_FALSE(spanned({}).valid());
  EXPECT_EQ(spanned({layout.expert_ranks()}), layout.expert_ranks());
  EXPECT_EQ(spanned({layout.expert_replicas()}), layout.expert_replicas());
  EXPECT_EQ(spanned({layout.expert_ranks(), layout.expert_replicas()}), layout.data_ranks());
  EXPECT_FALSE(Layout().spanned_by(std::vector<GroupId>{Layout().expert_ranks()}).valid());
  // A group that has the same ranks as another is found as itself.
  const Layout all = Layout::of_data_and_experts(4, 4);
  EXPECT_EQ(all.spanned_by(std::vector<GroupId>{all.expert_ranks()}), all.expert_ranks());
}

std::vector<int> ranks_of(const Layout& layout, GroupId group) {
  std::vector<int> ranks;
  for (const RankId rank : layout.members_of(group)) ranks.push_back(rank.value);
  return ranks;
}

using Ranks = std::vector<int>;

// tp 2, cp 2, dp 2, pp 2 and, of the experts, etp 2, ep 2, edp 2.
TEST(Layout, GroupsOfEveryMeaning) {
  const Layout layout = Layout::of({.tp = 2, .cp = 2, .dp = 2, .pp = 2, .etp = 2, .ep = 2}, RankId(5));
  EXPECT_EQ(ranks_of(layout, layout.tensor_ranks()), (Ranks{4, 5}));
  EXPECT_EQ(ranks_of(layout, layout.context_ranks()), (Ranks{5, 7}));
  EXPECT_EQ(ranks_of(layout, layout.data_ranks()), (Ranks{1, 5}));
  EXPECT_EQ(ranks_of(layout, layout.stages()), (Ranks{5, 13}));
  EXPECT_EQ(ranks_of(layout, layout.batch_ranks()), (Ranks{1, 3, 5, 7}));
  EXPECT_EQ(ranks_of(layout, layout.sample_ranks()), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(ranks_of(layout, layout.stage_ranks()), (Ranks{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(ranks_of(layout, layout.expert_tensor_ranks()), (Ranks{4, 5}));
  EXPECT_EQ(ranks_of(layout, layout.expert_ranks()), (Ranks{5, 7}));
  EXPECT_EQ(ranks_of(layout, layout.expert_parts()), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(ranks_of(layout, layout.expert_replicas()), (Ranks{1, 5}));
  EXPECT_EQ(layout.stage(), 0);
  EXPECT_EQ(layout.shard_of(3), 7);
  EXPECT_EQ(layout.placement_of({.tensor_dim = 1}), (Placement{{{1, layout.tensor_ranks()}}, layout.batch_ranks()}));
  EXPECT_EQ(layout.placement_of({}), (Placement{{}, layout.stage_ranks()}));
  EXPECT_EQ(layout.placement_of({.experts = true, .tensor_dim = 1}),
            (Placement{{{0, layout.expert_ranks()}, {1, layout.expert_tensor_ranks()}}, layout.expert_replicas()}));
}

// Meanings that a layout gives the same ranks have one id, so they need one communicator.
TEST(Layout, EqualGroupsHaveOneId) {
  const Layout layout = Layout::of({.tp = 2, .dp = 3});
  EXPECT_EQ(layout.batch_ranks(), layout.data_ranks());
  EXPECT_EQ(layout.sample_ranks(), layout.tensor_ranks());
  EXPECT_EQ(layout.expert_replicas(), layout.stage_ranks());
  EXPECT_EQ(Layout::of({.cp = 2}).batch_ranks(), layout.context_ranks());
}

TEST(Layout, InstancesCutTheDataRanks) {
  const Layout layout = Layout::of({.tp = 2, .dp = 4, .ep = 2, .instances = 2}, RankId(6));
  EXPECT_EQ(ranks_of(layout, layout.data_ranks()), (Ranks{0, 2, 4, 6}));
  EXPECT_EQ(ranks_of(layout, layout.instances()), (Ranks{2, 6}));
  const Layout::ShardGroups dense = layout.shards_of(layout.batch_ranks());
  EXPECT_EQ(ranks_of(layout, dense.inner), (Ranks{4, 6}));
  EXPECT_EQ(ranks_of(layout, dense.outer), (Ranks{2, 6}));
  const Layout::ShardGroups experts = layout.shards_of(layout.expert_replicas());
  EXPECT_EQ(ranks_of(layout, experts.inner), (Ranks{4, 6}));
  const Layout::ShardGroups norms = layout.shards_of(layout.stage_ranks());
  EXPECT_EQ(ranks_of(layout, norms.inner), (Ranks{4, 5, 6, 7}));
  EXPECT_FALSE(Layout::of({.dp = 4}).shards_of(layout.data_ranks()).outer.valid());
}

TEST(Layout, BothEndsHoldATiedEmbedding) {
  const Layout layout = Layout::of({.dp = 2, .pp = 3}, RankId(5));
  const GroupId replicas = layout.placement_of({.tensor_dim = 0, .on_both_ends = true}).replicas;
  EXPECT_EQ(ranks_of(layout, replicas), (Ranks{0, 1, 4, 5}));
  EXPECT_EQ(layout.all_groups(replicas), (std::vector<RankGroup>{{RankId(0), RankId(1), RankId(4), RankId(5)}}));
  EXPECT_EQ(ranks_of(layout.seen_from(RankId(2)), replicas), (Ranks{2}));
  EXPECT_EQ(ranks_of(layout, layout.embedding_stages()), (Ranks{1, 5}));
  const Layout::ShardGroups shards = layout.shards_of(replicas);
  EXPECT_EQ(ranks_of(layout, shards.inner), (Ranks{4, 5}));
  EXPECT_EQ(ranks_of(layout, shards.outer), (Ranks{1, 5}));
}

TEST(Layout, StagesMayComeBeforeDataRanks) {
  const Layout layout = Layout::of({.tp = 2, .dp = 2, .pp = 2, .ep = 2, .stages_before_data = true}, RankId(1));
  EXPECT_EQ(ranks_of(layout, layout.stages()), (Ranks{1, 3}));
  EXPECT_EQ(ranks_of(layout, layout.data_ranks()), (Ranks{1, 5}));
  EXPECT_EQ(ranks_of(layout, layout.stage_ranks()), (Ranks{0, 1, 4, 5}));
}

TEST(Layout, RefusesGroupsThatDoNotDivide) { EXPECT_THROW(Layout::of_data_and_experts(6, 4), UserError); }

}  // namespace
}  // namespace weft
