#include "apps/weft/grid_command.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/json.h"
#include "weft/base/text.h"
#include "weft/grid/grid.h"
#include "weft/train/flags.h"

namespace weft {
namespace {

constexpr std::string_view example =
    "\nExample: weft grid --shape tp=2,cp=1,dp=2,pp=2 --expert etp=1,ep=4,edp=1 --groups tp --groups dp,cp --groups "
    "ep\n";

// What a person reads at a glance; --json has every group.
constexpr std::size_t rows_shown = 32;
constexpr std::size_t ranks_shown = 16;

std::string left_out(std::size_t total, std::string_view noun) {
  return total > rows_shown ? fmt::format("  ... and {} more {}\n", total - rows_shown, noun) : "";
}

std::string shape_text(std::span<const Axis> axes) {
  std::vector<std::string> parts;
  for (const Axis& axis : axes) parts.push_back(fmt::format("{}={}", axis.name, axis.size));
  return join(parts, " x ");
}

// The axes that only the expert view has: it lists them before the shared ones.
std::span<const Axis> own_expert_axes(const Grid& grid) {
  const auto is_shared = [&](const Axis& axis) {
    return std::any_of(grid.axes().begin(), grid.axes().end(),
                       [&](const Axis& base) { return base.name == axis.name; });
  };
  const auto end = std::find_if(grid.expert_axes().begin(), grid.expert_axes().end(), is_shared);
  return {grid.expert_axes().data(), static_cast<std::size_t>(end - grid.expert_axes().begin())};
}

std::string draw_ranks(const Grid& grid) {
  const std::span<const Axis> own = own_expert_axes(grid);
  const auto cell = [](const Axis& axis, const auto& value) {
    return fmt::format("  {:>{}}", value, std::max<std::size_t>(axis.name.size(), 3));
  };
  std::string drawing = "    rank";
  for (const Axis& axis : grid.axes()) drawing += cell(axis, axis.name);
  if (!own.empty()) drawing += "  ";
  for (const Axis& axis : own) drawing += cell(axis, axis.name);
  drawing += "\n";
  for (int i = 0; i < std::min(grid.size(), static_cast<int>(rows_shown)); ++i) {
    const RankId rank(grid.offset() + i);
    const std::vector<int> at = grid.coordinates(rank);
    drawing += fmt::format("{:>8}", rank.value);
    for (std::size_t a = 0; a < at.size(); ++a) drawing += cell(grid.axes()[a], at[a]);
    if (!own.empty()) drawing += "  ";
    for (const Axis& axis : own) drawing += cell(axis, grid.coordinate(rank, axis.name));
    drawing += "\n";
  }
  return drawing + left_out(static_cast<std::size_t>(grid.size()), "ranks");
}

std::string draw_groups(const Grid& grid, const std::string& request) {
  const std::vector<RankGroup> groups = grid.groups(split(request, ','));
  const std::size_t size = groups.front().size();
  std::string drawing =
      fmt::format("\n{}: {} group{} of {}\n", request, groups.size(), groups.size() == 1 ? "" : "s", size);
  const std::size_t width = std::to_string(grid.offset() + grid.size() - 1).size();
  for (std::size_t g = 0; g < std::min(groups.size(), rows_shown); ++g) {
    drawing += fmt::format("  group {:<4}", g);
    for (std::size_t i = 0; i < std::min(size, ranks_shown); ++i)
      drawing += fmt::format(" {:>{}}", groups[g][i].value, width);
    if (size > ranks_shown) drawing += fmt::format(" ... {}", groups[g].back().value);
    drawing += "\n";
  }
  return drawing + left_out(groups.size(), "groups (--json lists all)");
}

std::string draw(const Grid& grid, const std::vector<std::string>& requests) {
  std::string drawing = fmt::format("{}: {} rank{}, {} to {}; {} varies fastest\n", shape_text(grid.axes()),
                                    grid.size(), grid.size() == 1 ? "" : "s", grid.offset(),
                                    grid.offset() + grid.size() - 1, grid.axes().front().name);
  if (grid.has_expert_view()) {
    const std::size_t own = own_expert_axes(grid).size();
    const std::span<const Axis> axes = grid.expert_axes();
    drawing += fmt::format("expert view {}", shape_text(axes.first(own)));
    if (own < axes.size()) drawing += fmt::format(" (shared: {})", shape_text(axes.subspan(own)));
    drawing += "\n";
  }
  drawing += "\n" + draw_ranks(grid);
  for (const std::string& request : requests) drawing += draw_groups(grid, request);
  return drawing;
}

Json to_json(const Grid& grid, const std::vector<std::string>& requests) {
  Json groups = Json::object();
  for (const std::string& request : requests) {
    Json& list = groups[request] = Json::array();
    for (const RankGroup& group : grid.groups(split(request, ','))) {
      Json& ranks = list.emplace_back(Json::array());
      for (RankId rank : group) ranks.push_back(rank.value);
    }
  }
  return {{"size", grid.size()}, {"groups", groups}};
}

}  // namespace

int run_grid_command(std::span<const std::string> args, std::FILE* out) {
  std::string shape, expert;
  std::vector<std::string> requests;
  std::int64_t offset = 0, world = 0;
  bool json = false;
  FlagTable flags("weft grid",
                  "Explains a grid of ranks: the coordinates of each rank and the groups that communicate.");
  flags.further_words_mean("the axes are given by --shape, the expert view by --expert, groups by --groups");
  flags.add("--shape", shape, "AXES", "Axes and sizes, tp=2,dp=4: the first varies fastest; any names.");
  flags.add("--expert", expert, "AXES",
            "A second factorization of the ranks of each pipeline stage, etp=1,ep=8 (also expt_tp, expt_dp); pp is "
            "shared.");
  flags.add("--groups", requests, "NAMES", "The groups along these axes, dp,cp, of one view. Repeatable.")
      .each()
      .standard("each axis");
  flags.add("--offset", offset, "N", "The first rank.").at_least(0);
  flags.add("--world-size", world, "N", "Checks that the ranks exist.").at_least(1).standard("any");
  flags.add("--json", json, "Prints JSON, with every group.");
  flags.apply(flags.scan(args));
  if (flags.help_wanted()) {
    fmt::print(out, "{}{}", flags.help(), example);
    return 0;
  }
  if (!flags.is_set("--shape"))
    throw UserError("--shape is missing: which axes does the grid have? Try --shape tp=2,dp=4");
  const Grid grid(parse_axes(shape), flags.is_set("--expert") ? parse_axes(expert) : std::vector<Axis>{},
                  static_cast<int>(offset));
  if (flags.is_set("--world-size")) grid.require_fits(static_cast<int>(world));

  if (requests.empty()) {
    for (const Axis& axis : grid.axes()) requests.push_back(axis.name);
    if (grid.has_expert_view())
      for (const Axis& axis : own_expert_axes(grid)) requests.push_back(axis.name);
  }
  fmt::print(out, "{}", json ? to_json(grid, requests).dump() + "\n" : draw(grid, requests));
  return 0;
}

}  // namespace weft
