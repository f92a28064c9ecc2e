// Named axes -> ranks and groups. A grid is a value: code asks it for groups and passes them down.
//
// The first axis varies fastest: rank = offset + sum(coordinate x stride), where the stride of an axis is the product
// of the sizes before it. A grid may have a second, expert view: another factorization (etp, ep, edp) of the ranks that
// agree on the shared axes. The shared axes are pp and those that both views name; so tp*cp*dp == etp*ep*edp, and a
// pipeline group is the same in both views.
//
// A group is the set of ranks that agree on all axes of its view except the given ones. Ranks in a group ascend, groups
// are ordered by their lowest rank, and the order of the given axes does not matter. etp and edp may also be spelled
// expt_tp and expt_dp.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/ids.h"
#include "weft/grid/axes.h"

namespace weft {

using RankGroup = std::vector<RankId>;
using AxisNames = std::vector<std::string>;

class Grid {
 public:
  // The expert view may name the shared axes, in the same places as the grid, or leave out pp.
  // UserError: no axes, an empty or repeated name, a size below one, an offset below zero, views whose products differ,
  // a shared axis that would join different ranks in the two views.
  explicit Grid(std::vector<Axis> axes, std::vector<Axis> expert_axes = {}, int offset = 0);

  int size() const { return size_; }
  int offset() const { return offset_; }
  bool contains(RankId rank) const { return rank.value >= offset_ && rank.value - offset_ < size_; }
  // UserError unless a world of this size contains all ranks of the grid.
  void require_fits(int world_size) const;

  const std::vector<Axis>& axes() const { return base_.axes; }
  bool has_expert_view() const { return !expert_.axes.empty(); }
  // The view's own axes, then the shared ones.
  const std::vector<Axis>& expert_axes() const { return expert_.axes; }
  bool has_axis(std::string_view name) const;
  int axis_size(std::string_view name) const;  // UserError when there is no such axis

  int coordinate(RankId rank, std::string_view axis) const;
  // In the order of axes(), and back.
  std::vector<int> coordinates(RankId rank) const { return base_.coordinates(local(rank)); }
  RankId rank_at(std::span<const int> coordinates) const { return global(base_.local_at(coordinates)); }
  // In the order of expert_axes(), and back.
  std::vector<int> expert_coordinates(RankId rank) const;
  RankId rank_at_expert(std::span<const int> coordinates) const;

  // UserError: no axis, an unknown axis, a repeated axis, axes of different views.
  std::vector<RankGroup> groups(const AxisNames& axes) const;
  RankGroup group_of(RankId rank, const AxisNames& axes) const;
  // The same name for the same set of axes in any order: {"tp", "cp"} -> "cp-tp" (slowest first).
  std::string group_key(const AxisNames& axes) const;

 private:
  struct View {
    std::vector<Axis> axes;
    // Position in the view (mixed radix of its axes, first fastest) <-> rank minus the offset.
    std::vector<int> local_of, position_of;

    int find(std::string_view name) const;  // index, or -1
    std::vector<int> coordinates(int local) const;
    int local_at(std::span<const int> coordinates) const;
  };
  struct Request {
    const View* view;
    std::vector<bool> selected;  // by axis of the view
  };

  int local(RankId rank) const;
  RankId global(int local) const { return RankId(local + offset_); }
  Request request(const AxisNames& axes) const;
  RankGroup expand(const Request& request, int local) const;
  void add_expert_view(std::vector<Axis> axes);
  std::string known_axes() const;

  View base_, expert_;
  int size_ = 1, offset_ = 0;
};

}  // namespace weft
