#include "weft/grid/grid.h"

#include <algorithm>
#include <numeric>

#include "weft/base/error.h"
#include "weft/base/text.h"

namespace weft {
namespace {

constexpr int most_ranks = 1 << 20;  // more than any machine has; a typo must not exhaust memory

std::string canonical(std::string_view name) {
  if (name == "expt_tp") return "etp";
  if (name == "expt_dp") return "edp";
  return std::string(name);
}

std::string names_of(std::span<const Axis> axes, std::string_view separator) {
  std::string text;
  for (const Axis& axis : axes) text += (text.empty() ? "" : std::string(separator)) + axis.name;
  return text;
}

std::string product_text(std::span<const Axis> axes) {
  std::int64_t product = 1;
  std::string sizes;
  for (const Axis& axis : axes) {
    product *= axis.size;
    sizes += (sizes.empty() ? "" : "*") + std::to_string(axis.size);
  }
  if (axes.empty()) return "1 (no axes)";
  return axes.size() == 1 ? fmt::format("{} = {}", axes[0].name, product)
                          : fmt::format("{} = {} = {}", names_of(axes, "*"), sizes, product);
}

// Makes the names canonical and checks one view, which messages call `where`. Returns its number of ranks.
int check_view(std::vector<Axis>& axes, std::string_view where) {
  if (axes.empty()) throw UserError("{} has no axes: give at least one, as in tp=2", where);
  std::int64_t product = 1;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    Axis& axis = axes[i];
    axis.name = canonical(axis.name);
    if (axis.name.empty()) throw UserError("{} has an axis without a name", where);
    for (std::size_t j = 0; j < i; ++j)
      if (axes[j].name == axis.name) throw UserError("{} names axis '{}' twice", where, axis.name);
    if (axis.size < 1)
      throw UserError("axis '{}' of {} has size {}: sizes are at least 1", axis.name, where, axis.size);
    product *= axis.size;
    if (product > most_ranks) throw UserError("{} has more than {} ranks ({})", where, most_ranks, product_text(axes));
  }
  return static_cast<int>(product);
}

int stride_of(std::span<const Axis> axes, std::size_t index) {
  int stride = 1;
  for (std::size_t i = 0; i < index; ++i) stride *= axes[i].size;
  return stride;
}

}  // namespace

Grid::Grid(std::vector<Axis> axes, std::vector<Axis> expert_axes, int offset) : offset_(offset) {
  size_ = check_view(axes, "the grid");
  if (offset < 0) throw UserError("the grid begins at rank {}: the offset must be 0 or more", offset);
  if (offset > INT32_MAX - size_) throw UserError("the grid begins at rank {}: the offset is too large", offset);
  base_.axes = std::move(axes);
  base_.local_of.resize(static_cast<std::size_t>(size_));
  std::iota(base_.local_of.begin(), base_.local_of.end(), 0);
  base_.position_of = base_.local_of;
  if (!expert_axes.empty()) add_expert_view(std::move(expert_axes));
}

void Grid::add_expert_view(std::vector<Axis> listed) {
  check_view(listed, "the expert view");
  std::vector<Axis> own, replaced, shared;
  std::vector<std::size_t> shared_at, replaced_at;  // in base_.axes
  for (const Axis& axis : listed)
    if (base_.find(axis.name) < 0) own.push_back(axis);
  const auto in_list = [&](std::string_view name) {
    const auto found = std::find_if(listed.begin(), listed.end(), [&](const Axis& axis) { return axis.name == name; });
    return found == listed.end() ? nullptr : &*found;
  };
  for (std::size_t i = 0; i < base_.axes.size(); ++i) {
    const Axis& axis = base_.axes[i];
    const Axis* twin = in_list(axis.name);
    const bool is_shared = twin || axis.name == "pp";
    (is_shared ? shared : replaced).push_back(axis);
    (is_shared ? shared_at : replaced_at).push_back(i);
    if (twin && twin->size != axis.size)
      throw UserError("axis '{}' is shared by the two views, but has size {} in the grid and {} in the expert view",
                      axis.name, axis.size, twin->size);
  }
  const std::string within = shared.empty() ? "" : fmt::format(" (for each {})", names_of(shared, ", "));
  const auto ranks = [](std::span<const Axis> axes) { return stride_of(axes, axes.size()); };
  if (ranks(own) != ranks(replaced))
    throw UserError("the expert view does not cover the grid's ranks{}: {}, but {}; the products must be equal", within,
                    product_text(own), product_text(replaced));
  // A shared axis in the list must join the same ranks as in the grid: the sizes before it must have the same product.
  for (std::size_t i = 0; i < listed.size(); ++i) {
    const int at = base_.find(listed[i].name);
    if (at < 0 || listed[i].size == 1) continue;
    int before = stride_of(base_.axes, static_cast<std::size_t>(at));
    if (const int pp = base_.find("pp"); pp >= 0 && pp < at && !in_list("pp"))
      before /= base_.axes[static_cast<std::size_t>(pp)].size;
    if (const int here = stride_of(listed, i); here != before)
      throw UserError(
          "shared axis '{}' would join different ranks in the two views: the sizes before it multiply to {} in the "
          "grid and to {} in the expert view",
          listed[i].name, before, here);
  }

  expert_.axes = own;
  expert_.axes.insert(expert_.axes.end(), shared.begin(), shared.end());
  expert_.local_of.resize(static_cast<std::size_t>(size_));
  expert_.position_of.resize(static_cast<std::size_t>(size_));
  for (int local = 0; local < size_; ++local) {
    const std::vector<int> at = base_.coordinates(local);
    int position = 0, stride = 1;
    for (const auto& axes : {replaced_at, shared_at}) {
      for (std::size_t i : axes) {
        position += at[i] * stride;
        stride *= base_.axes[i].size;
      }
    }
    expert_.local_of[static_cast<std::size_t>(position)] = local;
    expert_.position_of[static_cast<std::size_t>(local)] = position;
  }
}

void Grid::require_fits(int world_size) const {
  if (size_ > world_size - offset_)
    throw UserError("the grid needs ranks {} to {} ({}), but the world has only {} ranks", offset_, offset_ + size_ - 1,
                    product_text(base_.axes), world_size);
}

int Grid::View::find(std::string_view name) const {
  const std::string wanted = canonical(name);
  for (std::size_t i = 0; i < axes.size(); ++i)
    if (axes[i].name == wanted) return static_cast<int>(i);
  return -1;
}

std::vector<int> Grid::View::coordinates(int local) const {
  std::vector<int> result;
  int position = position_of[static_cast<std::size_t>(local)];
  for (const Axis& axis : axes) {
    result.push_back(position % axis.size);
    position /= axis.size;
  }
  return result;
}

int Grid::View::local_at(std::span<const int> coordinates) const {
  WEFT_CHECK(coordinates.size() == axes.size(), "{} coordinates for {} axes", coordinates.size(), axes.size());
  int position = 0, stride = 1;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    WEFT_CHECK(coordinates[i] >= 0 && coordinates[i] < axes[i].size, "coordinate {} of axis {} = {}", coordinates[i],
               axes[i].name, axes[i].size);
    position += coordinates[i] * stride;
    stride *= axes[i].size;
  }
  return local_of[static_cast<std::size_t>(position)];
}

int Grid::local(RankId rank) const {
  WEFT_CHECK(contains(rank), "rank {} in a grid of ranks {} to {}", rank.value, offset_, offset_ + size_ - 1);
  return rank.value - offset_;
}

bool Grid::has_axis(std::string_view name) const { return base_.find(name) >= 0 || expert_.find(name) >= 0; }

int Grid::axis_size(std::string_view name) const {
  const Request asked = request({std::string(name)});
  return asked.view->axes[static_cast<std::size_t>(asked.view->find(name))].size;
}

int Grid::coordinate(RankId rank, std::string_view axis) const {
  const Request asked = request({std::string(axis)});
  return asked.view->coordinates(local(rank))[static_cast<std::size_t>(asked.view->find(axis))];
}

std::vector<int> Grid::expert_coordinates(RankId rank) const {
  WEFT_CHECK(has_expert_view(), "expert coordinates of rank {}", rank.value);
  return expert_.coordinates(local(rank));
}

RankId Grid::rank_at_expert(std::span<const int> coordinates) const {
  WEFT_CHECK(has_expert_view(), "rank at {} expert coordinates", coordinates.size());
  return global(expert_.local_at(coordinates));
}

std::string Grid::known_axes() const {
  const auto list = [](const std::vector<Axis>& axes) {
    std::vector<std::string> names;
    for (const Axis& axis : axes) names.push_back(axis.name);
    return join(names, ", ");
  };
  std::string text = fmt::format("the grid has {}", list(base_.axes));
  text += has_expert_view() ? fmt::format("; its expert view {}", list(expert_.axes)) : " and no expert view";
  return text;
}

// The view that has all of the axes. Axes that both views share are looked up in the base view, so that a group of them
// has one key.
Grid::Request Grid::request(const AxisNames& names) const {
  if (names.empty()) throw UserError("a group needs at least one axis ({})", known_axes());
  const std::string* only_base = nullptr;
  const std::string* only_expert = nullptr;
  for (const std::string& name : names) {
    const bool in_base = base_.find(name) >= 0, in_expert = expert_.find(name) >= 0;
    if (!in_base && !in_expert) {
      std::vector<std::string> known;
      for (const View* view : {&base_, &expert_})
        for (const Axis& axis : view->axes) known.push_back(axis.name);
      const std::string near = nearest_name(name, known);
      throw UserError("there is no axis '{}': {}{}", name, known_axes(),
                      near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near));
    }
    if (in_base && !in_expert) only_base = &name;
    if (in_expert && !in_base) only_expert = &name;
  }
  if (only_base && only_expert)
    throw UserError("axes '{}' and '{}' belong to different views: a group needs axes of one view ({})", *only_base,
                    *only_expert, known_axes());
  Request request{.view = only_expert ? &expert_ : &base_};
  request.selected.resize(request.view->axes.size());
  for (const std::string& name : names) {
    const auto at = static_cast<std::size_t>(request.view->find(name));
    if (request.selected[at]) throw UserError("a group names axis '{}' twice", name);
    request.selected[at] = true;
  }
  return request;
}

// The group of a rank: the selected coordinates take every value, the others are fixed.
RankGroup Grid::expand(const Request& request, int local) const {
  const View& view = *request.view;
  std::vector<int> positions = {view.position_of[static_cast<std::size_t>(local)]};
  int stride = 1;
  for (std::size_t i = 0; i < view.axes.size(); stride *= view.axes[i++].size) {
    if (!request.selected[i]) continue;
    const int size = view.axes[i].size;
    positions.reserve(positions.size() * static_cast<std::size_t>(size));
    for (int& position : positions) position -= position / stride % size * stride;
    const std::size_t lines = positions.size();
    for (int k = 1; k < size; ++k)
      for (std::size_t line = 0; line < lines; ++line) positions.push_back(positions[line] + k * stride);
  }
  RankGroup group;
  group.reserve(positions.size());
  for (int position : positions) group.push_back(global(view.local_of[static_cast<std::size_t>(position)]));
  std::sort(group.begin(), group.end());
  return group;
}

std::vector<RankGroup> Grid::groups(const AxisNames& axes) const {
  const Request asked = request(axes);
  std::vector<RankGroup> result;
  for (int local = 0; local < size_; ++local) {
    const std::vector<int> at = asked.view->coordinates(local);
    bool lowest = true;  // ranks grow with every coordinate: the lowest of a group has 0 in all selected ones
    for (std::size_t i = 0; i < at.size(); ++i) lowest = lowest && !(asked.selected[i] && at[i] > 0);
    if (lowest) result.push_back(expand(asked, local));
  }
  return result;
}

RankGroup Grid::group_of(RankId rank, const AxisNames& axes) const { return expand(request(axes), local(rank)); }

std::string Grid::group_key(const AxisNames& axes) const {
  const Request asked = request(axes);
  std::string key;
  for (std::size_t i = asked.selected.size(); i-- > 0;)
    if (asked.selected[i]) key += (key.empty() ? "" : "-") + asked.view->axes[i].name;
  return key;
}

}  // namespace weft
