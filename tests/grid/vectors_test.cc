// Vectors T1 to T19 of the reference (T3 is a private enumeration of another system).
#include <algorithm>

#include <gtest/gtest.h>

#include "weft/base/error.h"
#include "weft/grid/grid.h"

namespace weft {
namespace {

using Ranks = std::vector<std::vector<int>>;

Ranks groups(const Grid& grid, const AxisNames& axes) {
  Ranks result;
  for (const RankGroup& group : grid.groups(axes)) {
    result.emplace_back();
    for (RankId rank : group) result.back().push_back(rank.value);
  }
  return result;
}

// What holds for any grid and any request: groups are disjoint, cover every rank, ascend, agree with group_of and do
// not depend on the order of the names.
void expect_lawful(const Grid& grid, AxisNames axes) {
  std::vector<int> seen(static_cast<std::size_t>(grid.size()), 0);
  const std::vector<RankGroup> all = grid.groups(axes);
  for (const RankGroup& group : all) {
    EXPECT_TRUE(std::is_sorted(group.begin(), group.end()));
    for (RankId rank : group) {
      ++seen.at(static_cast<std::size_t>(rank.value - grid.offset()));
      EXPECT_EQ(grid.group_of(rank, axes), group);
    }
  }
  EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
  std::reverse(axes.begin(), axes.end());
  EXPECT_EQ(grid.groups(axes), all);
}

const Ranks pairs = {{0, 1}, {2, 3}, {4, 5}, {6, 7}};
const Ranks halves = {{0, 1, 2, 3}, {4, 5, 6, 7}};
const Ranks every_second_in_halves = {{0, 2}, {1, 3}, {4, 6}, {5, 7}};
const Ranks across_halves = {{0, 4}, {1, 5}, {2, 6}, {3, 7}};
const Ranks everyone = {{0, 1, 2, 3, 4, 5, 6, 7}};

TEST(GridVectors, T1) { EXPECT_EQ(groups(Grid({{"tp", 2}, {"dp", 4}}), {"tp"}), pairs); }

TEST(GridVectors, T2) {
  const Grid grid({{"tp", 2}, {"cp", 2}, {"dp", 2}});
  EXPECT_EQ(groups(grid, {"tp", "cp"}), halves);
  EXPECT_EQ(groups(grid, {"cp", "tp"}), halves);
  EXPECT_EQ(grid.group_key({"tp", "cp"}), "cp-tp");
  EXPECT_EQ(grid.group_key({"dp", "tp"}), "dp-tp");
}

TEST(GridVectors, T4) { EXPECT_EQ(groups(Grid({{"tp", 2}, {"dp", 2}}, {}, 4), {"tp"}), (Ranks{{4, 5}, {6, 7}})); }

TEST(GridVectors, T5) { EXPECT_EQ(groups(Grid({{"a", 2}, {"b", 2}, {"c", 2}}), {"c"}), across_halves); }

TEST(GridVectors, T6) {
  const Grid grid({{"tp", 1}, {"cp", 2}, {"dp", 4}});
  EXPECT_EQ(groups(grid, {"tp"}), (Ranks{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}));
  EXPECT_EQ(groups(grid, {"tp", "cp"}), pairs);
}

TEST(GridVectors, T7) {
  const Ranks dp = groups(Grid({{"tp", 2}, {"cp", 3}, {"pp", 4}, {"dp", 5}}), {"dp"});
  ASSERT_EQ(dp.size(), 24u);
  EXPECT_EQ(dp[0], (std::vector<int>{0, 24, 48, 72, 96}));
  EXPECT_EQ(dp[23], (std::vector<int>{23, 47, 71, 95, 119}));
}

TEST(GridVectors, T8) {
  const Grid grid({{"tp", 2}, {"dp", 2}, {"pp", 2}}, {{"expt_tp", 2}, {"ep", 2}, {"pp", 2}});
  EXPECT_EQ(groups(grid, {"pp"}), across_halves);
  EXPECT_EQ(groups(grid, {"expt_tp", "ep"}), halves);
}

TEST(GridVectors, T9) {
  EXPECT_EQ(groups(Grid({{"pp", 2}, {"ep", 4}}), {"pp"}), pairs);
  EXPECT_THROW(Grid({{"tp", 2}, {"dp", 2}, {"pp", 2}}, {{"pp", 2}, {"ep", 4}}), UserError);  // message: grid_test.cc
}

TEST(GridVectors, T10) {
  const std::vector<Axis> base = {{"tp", 2}, {"cp", 2}, {"dp", 2}, {"pp", 1}};
  const Grid same(base, {{"etp", 2}, {"ep", 2}, {"edp", 2}});
  EXPECT_EQ(same.groups({"ep"}), same.groups({"cp"}));
  EXPECT_EQ(same.groups({"ep", "etp"}), same.groups({"cp", "tp"}));
  EXPECT_EQ(groups(Grid(base, {{"etp", 2}, {"ep", 4}, {"edp", 1}}), {"ep"}), (Ranks{{0, 2, 4, 6}, {1, 3, 5, 7}}));
}

const std::vector<Axis> base11 = {{"tp", 2}, {"cp", 1}, {"dp", 2}, {"pp", 2}};

TEST(GridVectors, T11) {
  const Grid grid(base11);
  EXPECT_EQ(groups(grid, {"dp"}), every_second_in_halves);
  EXPECT_EQ(groups(grid, {"pp"}), across_halves);
  EXPECT_EQ(groups(grid, {"tp", "pp"}), (Ranks{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(groups(grid, {"tp", "cp", "dp"}), halves);
}

TEST(GridVectors, T12) {
  const Grid grid({{"tp", 2}, {"cp", 2}, {"dp", 2}, {"pp", 2}});
  EXPECT_EQ(groups(grid, {"cp"}), (Ranks{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}}));
  EXPECT_EQ(groups(grid, {"dp", "cp"}), (Ranks{{0, 2, 4, 6}, {1, 3, 5, 7}, {8, 10, 12, 14}, {9, 11, 13, 15}}));
  EXPECT_EQ(groups(grid, {"tp", "dp"}), (Ranks{{0, 1, 4, 5}, {2, 3, 6, 7}, {8, 9, 12, 13}, {10, 11, 14, 15}}));
}

// T13 to T15: expert views over T11, with pp written in the list and left out.
Grid expert_grid(int etp, int ep, int edp, bool write_pp) {
  std::vector<Axis> expert = {{"expt_tp", etp}, {"ep", ep}, {"expt_dp", edp}};
  if (write_pp) expert.push_back({"pp", 2});
  return Grid(base11, expert);
}

TEST(GridVectors, T13) {
  for (bool write_pp : {true, false}) {
    const Grid grid = expert_grid(1, 4, 1, write_pp);
    EXPECT_EQ(groups(grid, {"ep"}), halves);
    EXPECT_EQ(groups(grid, {"expt_tp", "ep", "pp"}), everyone);
    EXPECT_EQ(groups(grid, {"pp"}), across_halves);
  }
}

TEST(GridVectors, T14) {
  for (bool write_pp : {true, false}) {
    const Grid grid = expert_grid(2, 2, 1, write_pp);
    EXPECT_EQ(groups(grid, {"expt_tp"}), pairs);
    EXPECT_EQ(groups(grid, {"ep"}), every_second_in_halves);
  }
}

TEST(GridVectors, T15) {
  for (bool write_pp : {true, false}) {
    const Grid grid = expert_grid(1, 2, 2, write_pp);
    EXPECT_EQ(groups(grid, {"ep"}), pairs);
    EXPECT_EQ(groups(grid, {"expt_dp"}), every_second_in_halves);
    EXPECT_EQ(groups(grid, {"expt_tp", "ep", "pp"}), (Ranks{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  }
}

const std::vector<Axis> base16 = {{"tp", 2}, {"cp", 1}, {"dp", 4}, {"pp", 1}};

TEST(GridVectors, T16) {
  const Grid grid(base16, {{"expt_tp", 1}, {"ep", 4}, {"expt_dp", 2}, {"pp", 1}});
  EXPECT_EQ(groups(grid, {"ep"}), halves);
  EXPECT_EQ(groups(grid, {"expt_dp"}), across_halves);
}

TEST(GridVectors, T17) {
  const Grid grid(base16, {{"expt_tp", 2}, {"ep", 4}, {"expt_dp", 1}, {"pp", 1}});
  EXPECT_EQ(groups(grid, {"ep"}), (Ranks{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  EXPECT_EQ(groups(grid, {"expt_tp", "ep"}), everyone);
}

TEST(GridVectors, T18) {
  const Grid grid({{"tp", 2}, {"gtp_remat", 2}, {"cp", 1}, {"dp", 1}, {"pp", 1}},
                  {{"expt_tp", 1}, {"ep", 2}, {"expt_gtp_remat", 2}, {"expt_dp", 1}, {"pp", 1}}, 4);
  EXPECT_EQ(groups(grid, {"tp"}), (Ranks{{4, 5}, {6, 7}}));
  EXPECT_EQ(groups(grid, {"gtp_remat"}), (Ranks{{4, 6}, {5, 7}}));
  EXPECT_EQ(groups(grid, {"tp", "gtp_remat", "pp"}), (Ranks{{4, 5, 6, 7}}));
  EXPECT_EQ(groups(grid, {"ep"}), (Ranks{{4, 5}, {6, 7}}));
  EXPECT_EQ(groups(grid, {"expt_gtp_remat"}), (Ranks{{4, 6}, {5, 7}}));
}

TEST(GridVectors, T19) {
  const Grid grid({{"tp", 2}, {"cp", 1}, {"pp", 2}, {"dp", 2}});
  EXPECT_EQ(groups(grid, {"pp"}), every_second_in_halves);
  EXPECT_EQ(groups(grid, {"dp"}), across_halves);
}

// With pp in the middle the expert view still factors the ranks of each stage: stage 0 is {0, 1, 4, 5}.
TEST(GridVectors, ExpertViewLivesWithinEachStageWhereverPpStands) {
  const std::vector<Axis> base = {{"tp", 2}, {"pp", 2}, {"dp", 2}};
  const Grid one(base, {{"etp", 1}, {"ep", 4}, {"edp", 1}});
  EXPECT_EQ(groups(one, {"ep"}), (Ranks{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(groups(one, {"ep", "pp"}), everyone);
  EXPECT_EQ(groups(one, {"pp"}), every_second_in_halves);
  const Grid implied(base, {{"ep", 2}, {"edp", 2}}), written(base, {{"ep", 2}, {"pp", 2}, {"edp", 2}});
  for (const AxisNames& axes : std::vector<AxisNames>{{"ep"}, {"edp"}, {"ep", "edp"}, {"ep", "pp"}})
    EXPECT_EQ(implied.groups(axes), written.groups(axes));
  EXPECT_EQ(groups(written, {"edp"}), across_halves);
  // A second shared axis in addition to an implied pp.
  EXPECT_EQ(Grid(base, {{"etp", 2}, {"dp", 2}}).groups({"etp", "dp"}), one.groups({"ep"}));
}

TEST(GridLaws, HoldForEveryRequest) {
  const std::vector<Axis> expert = {{"etp", 2}, {"ep", 3}, {"edp", 2}};
  for (const Grid& grid : {Grid({{"tp", 2}, {"cp", 3}, {"dp", 2}, {"pp", 2}}, expert),
                           Grid({{"tp", 2}, {"pp", 3}, {"cp", 3}, {"dp", 2}}, expert, 5)}) {
    for (const std::vector<std::string>& view :
         {AxisNames{"tp", "cp", "dp", "pp"}, AxisNames{"etp", "ep", "edp", "pp"}})
      for (int mask = 1; mask < 16; ++mask) {
        AxisNames axes;
        for (int i = 0; i < 4; ++i)
          if (mask >> i & 1) axes.push_back(view[static_cast<std::size_t>(i)]);
        expect_lawful(grid, axes);
      }
    for (int r = grid.offset(); r < grid.offset() + grid.size(); ++r) {
      const RankId rank(r);
      EXPECT_EQ(grid.rank_at(grid.coordinates(rank)), rank);
      EXPECT_EQ(grid.rank_at_expert(grid.expert_coordinates(rank)), rank);
      for (const char* axis : {"cp", "ep", "pp"})  // along one axis, the place in the group is the coordinate
        EXPECT_EQ(grid.group_of(rank, {axis}).at(static_cast<std::size_t>(grid.coordinate(rank, axis))), rank);
    }
  }
}

}  // namespace
}  // namespace weft
