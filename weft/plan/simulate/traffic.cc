#include "weft/plan/simulate/traffic.h"

namespace weft {

std::array<double, lane_count> traffic_of(const Plan& plan, const Layout& layout) {
  std::array<double, lane_count> sent{};
  for (const Node& node : plan.nodes)
    for (const NodeCollective& c : plan.collectives_of(node)) {
      const auto n = static_cast<double>(layout.size_of(c.group));
      const auto bytes = static_cast<double>(c.bytes);
      double& lane = sent[static_cast<std::size_t>(node.lane)];
      switch (c.kind) {
        case CollectiveKind::all_reduce:
          lane += 2 * (n - 1) / n * bytes;
          break;
        case CollectiveKind::reduce_scatter:
        case CollectiveKind::all_to_all:
          lane += (n - 1) / n * bytes;
          break;
        case CollectiveKind::all_gather:
          lane += (n - 1) * bytes;
          break;
        case CollectiveKind::broadcast:
        case CollectiveKind::send:
        case CollectiveKind::to_next:
        case CollectiveKind::to_previous:
          lane += bytes;
          break;
        case CollectiveKind::receive:
        case CollectiveKind::barrier:
          break;
      }
    }
  return sent;
}

}  // namespace weft
