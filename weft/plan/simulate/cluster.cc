#include "weft/plan/simulate/cluster.h"

#include <algorithm>
#include <bit>
#include <vector>

#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/base/text.h"

namespace weft {

std::string to_text(const Cluster& c) {
  const auto text = [](const LinkSpeed& link) {
    return fmt::format("{}B/s and {:g} us", human_count(link.bandwidth), link.latency * 1e6);
  };
  const std::string links = c.ranks_per_machine > 0 && c.within != c.between
                                ? fmt::format("{} between the {} ranks of a machine, {} between machines",
                                              text(c.within), c.ranks_per_machine, text(c.between))
                                : fmt::format("{} between ranks", text(c.within));
  return fmt::format("{}FLOP/s, {}B/s of memory, {}, {:g} us per node", human_count(c.flops), human_count(c.bytes),
                     links, c.node_overhead * 1e6);
}

GroupPlace place_of(std::span<const RankId> group, const Cluster& cluster) {
  std::vector<std::int64_t> machines;
  machines.reserve(group.size());
  for (RankId rank : group) machines.push_back(cluster.machine_of(rank));
  std::sort(machines.begin(), machines.end());
  GroupPlace place;
  place.ranks = place.fewest = static_cast<int>(group.size());
  for (std::size_t i = 0; i < machines.size();) {
    std::size_t end = i + 1;
    while (end < machines.size() && machines[end] == machines[i]) ++end;
    place.fewest = std::min(place.fewest, static_cast<int>(end - i));
    place.most = std::max(place.most, static_cast<int>(end - i));
    i = end;
  }
  return place;
}

double seconds_of(const Node& node, const Cluster& cluster) {
  return std::max(node.flops / cluster.flops, node.bytes / cluster.bytes);
}

double transfer_seconds(double bytes, const LinkSpeed& link) { return link.latency + bytes / link.bandwidth; }

double seconds_of(const NodeCollective& collective, const GroupPlace& place, const Cluster& c) {
  if (place.ranks <= 1) return 0;
  LinkSpeed link = c.within;
  if (place.most == 1) {
    link = c.between;
  } else if (place.fewest < place.ranks) {
    link = {std::max(c.within.latency, c.between.latency), std::min(c.within.bandwidth, c.between.bandwidth)};
  }
  const auto n = static_cast<double>(place.ranks);
  const auto bytes = static_cast<double>(collective.bytes);
  const auto depth = static_cast<double>(std::bit_width(static_cast<unsigned>(place.ranks - 1)));  // ceil(log2 n)
  switch (collective.kind) {
    case CollectiveKind::all_reduce:
      return 2 * (n - 1) * link.latency + 2 * (n - 1) / n * bytes / link.bandwidth;
    case CollectiveKind::reduce_scatter:
      return (n - 1) * link.latency + (n - 1) / n * bytes / link.bandwidth;
    case CollectiveKind::all_gather:
      return (n - 1) * link.latency + (n - 1) * bytes / link.bandwidth;
    case CollectiveKind::broadcast:
      return depth * link.latency + bytes / link.bandwidth;
    case CollectiveKind::barrier:
      return depth * link.latency;
    case CollectiveKind::all_to_all: {
      const int near = place.most - 1, far = place.ranks - place.fewest;
      return std::max(near > 0 ? transfer_seconds(near * bytes / n, c.within) : 0,
                      far > 0 ? transfer_seconds(far * bytes / n, c.between) : 0);
    }
    case CollectiveKind::to_next:
    case CollectiveKind::to_previous:
      return link.latency + bytes / link.bandwidth;
    case CollectiveKind::send:
    case CollectiveKind::receive:
      break;
  }
  WEFT_CHECK(false, "{} is between two ranks", name_of(collective.kind));
}

}  // namespace weft
