#include "weft/grid/grid.h"

#include <functional>

#include <gtest/gtest.h>

#include "weft/base/error.h"

namespace weft {
namespace {

const std::vector<Axis> base = {{"tp", 2}, {"cp", 1}, {"dp", 2}, {"pp", 2}};
const std::vector<Axis> expert = {{"etp", 1}, {"ep", 4}, {"edp", 1}};

std::string message(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Grid, KnowsItsCoordinates) {
  const Grid grid(base, expert, 10);
  EXPECT_EQ(grid.size(), 8);
  EXPECT_EQ(grid.coordinates(RankId(10 + 7)), (std::vector<int>{1, 0, 1, 1}));
  EXPECT_EQ(grid.rank_at(std::vector<int>{0, 0, 1, 1}), RankId(16));
  EXPECT_EQ(grid.expert_coordinates(RankId(17)), (std::vector<int>{0, 3, 0, 1}));
  EXPECT_EQ(grid.rank_at_expert(std::vector<int>{0, 2, 0, 1}), RankId(16));
  EXPECT_EQ(grid.coordinate(RankId(13), "dp"), 1);
  EXPECT_EQ(grid.coordinate(RankId(13), "ep"), 3);
  EXPECT_EQ(grid.coordinate(RankId(17), "pp"), 1);
  EXPECT_EQ(grid.group_of(RankId(15), {"dp"}), (RankGroup{RankId(15), RankId(17)}));
  EXPECT_TRUE(grid.contains(RankId(10)));
  EXPECT_TRUE(grid.contains(RankId(17)));
  EXPECT_FALSE(grid.contains(RankId(9)));
  EXPECT_FALSE(grid.contains(RankId(18)));
  EXPECT_THROW(grid.coordinates(RankId(18)), BugError);
  EXPECT_THROW(grid.rank_at(std::vector<int>{0, 1, 0, 0}), BugError);
  EXPECT_THROW(grid.rank_at(std::vector<int>{0, 0, 0}), BugError);
  EXPECT_THROW(Grid(base).expert_coordinates(RankId(0)), BugError);
}

TEST(Grid, KnowsItsAxes) {
  const Grid grid(base, expert);
  EXPECT_EQ(grid.axes(), base);
  EXPECT_EQ(grid.expert_axes(), (std::vector<Axis>{{"etp", 1}, {"ep", 4}, {"edp", 1}, {"pp", 2}}));
  EXPECT_TRUE(grid.has_expert_view());
  EXPECT_FALSE(Grid(base).has_expert_view());
  EXPECT_TRUE(grid.has_axis("ep"));
  EXPECT_FALSE(Grid(base).has_axis("ep"));
  EXPECT_EQ(grid.axis_size("ep"), 4);
  EXPECT_EQ(grid.axis_size("dp"), 2);
}

TEST(Grid, AcceptsBothSpellingsOfExpertAxes) {
  const Grid ours(base, {{"etp", 2}, {"ep", 1}, {"edp", 2}}), theirs(base, {{"expt_tp", 2}, {"ep", 1}, {"expt_dp", 2}});
  EXPECT_EQ(ours.expert_axes(), theirs.expert_axes());
  EXPECT_EQ(ours.groups({"expt_dp"}), theirs.groups({"edp"}));
  EXPECT_EQ(ours.group_key({"expt_tp", "ep"}), "ep-etp");
}

TEST(Grid, SharedAxesMakeTheSameGroupInBothViews) {
  const Grid grid(base, {{"etp", 1}, {"ep", 4}, {"edp", 1}, {"pp", 2}});
  EXPECT_EQ(grid.groups({"pp"}), Grid(base).groups({"pp"}));
  EXPECT_EQ(grid.group_key({"pp"}), "pp");
  EXPECT_EQ(grid.group_key({"pp", "ep"}), "pp-ep");  // a shared and an own axis of the expert view
}

TEST(GridErrors, Shape) {
  EXPECT_EQ(message([] { Grid({}); }), "the grid has no axes: give at least one, as in tp=2");
  EXPECT_EQ(message([] { Grid({{"tp", 2}, {"dp", 2}, {"tp", 4}}); }), "the grid names axis 'tp' twice");
  EXPECT_EQ(message([] { Grid({{"", 2}}); }), "the grid has an axis without a name");
  EXPECT_EQ(message([] { Grid({{"tp", 0}}); }), "axis 'tp' of the grid has size 0: sizes are at least 1");
  EXPECT_EQ(message([] { Grid({{"tp", 2}, {"dp", -2}}); }), "axis 'dp' of the grid has size -2: sizes are at least 1");
  EXPECT_EQ(message([] { Grid({{"tp", 2}}, {}, -1); }), "the grid begins at rank -1: the offset must be 0 or more");
  EXPECT_EQ(message([] {
              Grid({{"tp", 2}}, {}, INT32_MAX);
            }),
            "the grid begins at rank 2147483647: the offset is too large");
  EXPECT_EQ(message([] {
              Grid({{"tp", 1 << 20}, {"dp", 2}});
            }),
            "the grid has more than 1048576 ranks (tp*dp = 1048576*2 = 2097152)");
}

TEST(GridErrors, World) {
  const Grid grid(base, {}, 4);
  EXPECT_EQ(message([&] { grid.require_fits(12); }), "no error");
  EXPECT_EQ(message([&] { grid.require_fits(11); }),
            "the grid needs ranks 4 to 11 (tp*cp*dp*pp = 2*1*2*2 = 8), but the world has only 11 ranks");
}

TEST(GridErrors, ExpertView) {
  EXPECT_EQ(message([] { Grid(base, {{"etp", 1}, {"expt_tp", 4}}); }), "the expert view names axis 'etp' twice");
  EXPECT_EQ(message([] { Grid(base, {{"ep", 0}}); }), "axis 'ep' of the expert view has size 0: sizes are at least 1");
  EXPECT_EQ(message([] {
              Grid(base, {{"etp", 1}, {"ep", 2}, {"edp", 1}});
            }),
            "the expert view does not cover the grid's ranks (for each pp): etp*ep*edp = 1*2*1 = 2, but "
            "tp*cp*dp = 2*1*2 = 4; the products must be equal");
  EXPECT_EQ(message([] {
              Grid({{"a", 4}}, {{"ep", 8}});
            }),
            "the expert view does not cover the grid's ranks: ep = 8, but a = 4; the products must be equal");
  EXPECT_EQ(message([] {
              Grid(base, {{"ep", 4}, {"pp", 4}});
            }),
            "axis 'pp' is shared by the two views, but has size 2 in the grid and 4 in the expert view");
  // T9: a leading pp joins neighbours, the grid's pp joins ranks 4 apart.
  EXPECT_EQ(message([] {
              Grid({{"tp", 2}, {"dp", 2}, {"pp", 2}}, {{"pp", 2}, {"ep", 4}});
            }),
            "shared axis 'pp' would join different ranks in the two views: the sizes before it multiply to 4 in the "
            "grid and to 1 in the expert view");
  // Two shared axes in swapped order.
  EXPECT_EQ(message([] {
              Grid({{"tp", 2}, {"a", 2}, {"b", 2}}, {{"ep", 2}, {"b", 2}, {"a", 2}});
            }),
            "shared axis 'b' would join different ranks in the two views: the sizes before it multiply to 4 in the "
            "grid and to 2 in the expert view");
}

TEST(GridErrors, Requests) {
  const Grid grid(base, expert), plain(base);
  EXPECT_EQ(
      message([&] { grid.groups({"xp"}); }),
      "there is no axis 'xp': the grid has tp, cp, dp, pp; its expert view etp, ep, edp, pp (did you mean 'tp'?)");
  EXPECT_EQ(message([&] {
              grid.groups({"tp", "remat"});
            }),
            "there is no axis 'remat': the grid has tp, cp, dp, pp; its expert view etp, ep, edp, pp");
  EXPECT_EQ(message([&] {
              plain.groups({"edp"});
            }).rfind("there is no axis 'edp': the grid has tp, cp, dp, pp and no expert view", 0),
            0u);
  EXPECT_EQ(
      message([&] {
        grid.groups({"tp", "ep"});
      }),
      "axes 'tp' and 'ep' belong to different views: a group needs axes of one view (the grid has tp, cp, dp, pp; its "
      "expert view etp, ep, edp, pp)");
  EXPECT_EQ(message([&] {
              grid.group_of(RankId(0), {"ep", "pp", "dp"});
            }).rfind("axes 'dp' and 'ep' belong to different views", 0),
            0u);
  EXPECT_EQ(message([&] { grid.groups({"tp", "tp"}); }), "a group names axis 'tp' twice");
  EXPECT_EQ(message([&] { grid.groups({"edp", "expt_dp"}); }), "a group names axis 'expt_dp' twice");
  EXPECT_EQ(message([&] { plain.groups({}); }),
            "a group needs at least one axis (the grid has tp, cp, dp, pp and no expert view)");
  EXPECT_EQ(message([&] { plain.axis_size("ep"); }).rfind("there is no axis 'ep'", 0), 0u);
}

TEST(ParseAxes, ReadsNamesAndSizes) {
  EXPECT_EQ(parse_axes("tp=2,cp=1"), (std::vector<Axis>{{"tp", 2}, {"cp", 1}}));
  EXPECT_EQ(parse_axes("x=-3"), (std::vector<Axis>{{"x", -3}}));  // the grid refuses it, with the axis' name
}

TEST(ParseAxes, PointsAtTheMistake) {
  EXPECT_EQ(message([] { parse_axes("tp=2,dp"); }),
            "bad axes: write each axis as name=size, as in tp=2,dp=4\n  tp=2,dp\n         ^");
  EXPECT_EQ(message([] { parse_axes("tp=2,"); }),
            "bad axes: write each axis as name=size, as in tp=2,dp=4\n  tp=2,\n       ^");
  EXPECT_EQ(message([] { parse_axes("tp=2,=4"); }), "bad axes: an axis needs a name before '='\n  tp=2,=4\n       ^");
  EXPECT_EQ(message([] { parse_axes("tp=two"); }),
            "bad axes: the size of axis 'tp' must be a whole number\n  tp=two\n     ^");
  EXPECT_EQ(message([] { parse_axes("tp=1.5"); }),
            "bad axes: the size of axis 'tp' must be a whole number\n  tp=1.5\n     ^");
  EXPECT_EQ(message([] { parse_axes("dp=1,tp=99999999999"); }),
            "bad axes: the size of axis 'tp' must be a whole number\n  dp=1,tp=99999999999\n          ^");
}

}  // namespace
}  // namespace weft
