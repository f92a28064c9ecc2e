// Who holds what: groups, experts, owners and classes of ranks.
#include "weft/grid/layout.h"

#include <gtest/gtest.h>

#include "weft/base/error.h"

namespace weft {
namespace {

TEST(Layout, OneRankOwnsEverything) {
  const Layout layout;
  EXPECT_EQ(layout.owners(), std::vector<RankId>{RankId(0)});
  EXPECT_TRUE(layout.owns(layout.placement_of(false)));
  EXPECT_TRUE(layout.owns(layout.placement_of(true)));
}

// Four ranks, experts over pairs: rank 0 owns what all hold, and ranks 0 and 1 the experts that 2 and 3 hold too.
TEST(Layout, TheFirstReplicaOwnsAParameter) {
  const Layout layout = Layout::of_data_and_experts(4, 2);
  EXPECT_EQ(layout.owners(), (std::vector<RankId>{RankId(0), RankId(1)}));
  for (int r = 0; r < 4; ++r) {
    const Layout there = layout.seen_from(RankId(r));
    EXPECT_EQ(there.owns(there.placement_of(false)), r == 0) << r;
    EXPECT_EQ(there.owns(there.placement_of(true)), r < 2) << r;
    EXPECT_EQ(there.experts_here(8).first, r % 2 == 0 ? 0 : 4) << r;
    EXPECT_EQ(there.experts_here(8).count, 4) << r;
  }
  const Placement experts = layout.placement_of(true);
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

TEST(Layout, RefusesGroupsThatDoNotDivide) { EXPECT_THROW(Layout::of_data_and_experts(6, 4), UserError); }

}  // namespace
}  // namespace weft
