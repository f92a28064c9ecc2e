// When the nodes of a step begin and end if all lanes of a rank share one link, as on the emulated network of thread
// ranks (comm/local/network.h). The estimate of a plan (plan/simulate) gives every collective the whole bandwidth.
//
// For plans that are the same on all ranks: then all ranks do the same at the same time, and one of them is enough.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "weft/base/error.h"
#include "weft/execute/step_plan.h"
#include "weft/plan/draw/timeline.h"

namespace weft {

// Seconds that a collective occupies the link of a rank.
inline double seconds_of_link(const NodeCollective& c, const Layout& layout, double bandwidth) {
  const auto n = static_cast<double>(layout.size_of(c.group)), bytes = static_cast<double>(c.bytes);
  switch (c.kind) {
    case CollectiveKind::all_reduce:
      return 2 * (n - 1) / n * bytes / bandwidth;
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::all_to_all:
      return (n - 1) / n * bytes / bandwidth;
    case CollectiveKind::all_gather:
      return (n - 1) * bytes / bandwidth;
    default:
      WEFT_CHECK(false, "{} is not among the collectives of a step without pipeline", name_of(c.kind));
  }
}

// Takes one collective or node after the other, always the earliest; so the link is given out in the order of arrival.
inline Timeline replay_over_one_link(const StepPlan& step, const Cluster& cluster) {
  const Plan& plan = step.plan;
  const std::vector<LaneMarks> waits = lane_waits(plan, step.memory);
  struct LaneState {
    std::vector<std::size_t> nodes;
    std::size_t next = 0;          // of nodes
    std::int32_t collective = -1;  // of that node; -1: it has not begun
    double time = 0;
  };
  std::array<LaneState, lane_count> lanes;
  for (std::size_t i = 0; i < plan.nodes.size(); ++i)
    lanes[static_cast<std::size_t>(plan.nodes[i].lane)].nodes.push_back(i);
  std::vector<double> start(plan.nodes.size()), end(plan.nodes.size(), -1);
  const auto ready_at = [&](const LaneState& lane) {
    constexpr double never = std::numeric_limits<double>::infinity();
    if (lane.next == lane.nodes.size()) return never;
    double at = lane.time;
    if (lane.collective >= 0) return at;
    for (const std::int32_t mark : waits[lane.nodes[lane.next]])
      if (mark >= 0)
        at = end[static_cast<std::size_t>(mark)] < 0 ? never : std::max(at, end[static_cast<std::size_t>(mark)]);
    return at;
  };
  double link_free = 0;
  for (std::size_t left = plan.nodes.size(); left > 0;) {
    LaneState& lane = *std::min_element(
        lanes.begin(), lanes.end(), [&](const LaneState& a, const LaneState& b) { return ready_at(a) < ready_at(b); });
    const std::size_t i = lane.nodes[lane.next];
    const Node& node = plan.nodes[i];
    lane.time = ready_at(lane);
    if (lane.collective < 0) {
      start[i] = lane.time;
      lane.collective = 0;
      if (node.collectives == 0) lane.time += seconds_of(node, cluster);
    } else {
      const NodeCollective& c = plan.collectives_of(node)[static_cast<std::size_t>(lane.collective++)];
      const double seconds = seconds_of_link(c, step.module.layout, cluster.within.bandwidth);
      if (seconds > 0) link_free = std::max(link_free, lane.time) + seconds;
      lane.time = (seconds > 0 ? link_free : lane.time) + cluster.within.latency;
    }
    if (lane.collective < node.collectives) continue;
    end[i] = lane.time;
    lane.collective = -1;
    ++lane.next;
    --left;
  }
  Timeline timeline;
  const std::vector<std::int32_t> labels = add_labels(timeline, plan);
  for (std::size_t i = 0; i < plan.nodes.size(); ++i)
    timeline.events.push_back({0, labels[i], plan.nodes[i].micro_batch, start[i], end[i]});
  return timeline;
}

}  // namespace weft
