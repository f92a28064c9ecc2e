#include <algorithm>

#include "weft/base/error.h"
#include "weft/base/text.h"
#include "weft/grid/grid.h"

namespace weft {

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

// All axes of one view. A request of shared axes only is the base view's, so it is the same group by any name.
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
    throw UserError("axes '{}' and '{}' are of different views: a group lies in one view ({})", *only_base,
                    *only_expert, known_axes());
  Request request{.view = only_expert ? &expert_ : &base_};
  request.selected.resize(request.view->axes.size());
  for (const std::string& name : names) {
    const auto at = static_cast<std::size_t>(request.view->find(name));
    if (request.selected[at]) throw UserError("axis '{}' is asked for twice in one group", name);
    request.selected[at] = true;
  }
  return request;
}

// The group of a rank: every value of the selected coordinates, the others as they are.
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
    bool lowest = true;  // rank grows with every coordinate, so a group's lowest rank has zeros
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

std::vector<Axis> parse_axes(std::string_view text) {
  std::vector<Axis> axes;
  std::size_t begin = 0;
  const auto fail = [&](std::size_t position, std::string_view rule) {
    throw UserError("bad axes: {}\n{}", rule, point_at(text, position));
  };
  for (const std::string& part : split(text, ',')) {
    const std::size_t equal = part.find('=');
    if (equal == std::string::npos) fail(begin + part.size(), "write each axis as name=size, as in tp=2,dp=4");
    if (equal == 0) fail(begin, "an axis needs a name before '='");
    std::int64_t size = 0;
    if (!parse_int(std::string_view(part).substr(equal + 1), size) || size != static_cast<int>(size))
      fail(begin + equal + 1, fmt::format("the size of axis '{}' must be a whole number", part.substr(0, equal)));
    axes.push_back({part.substr(0, equal), static_cast<int>(size)});
    begin += part.size() + 1;
  }
  return axes;
}

}  // namespace weft
