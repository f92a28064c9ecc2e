#include "weft/plan/estimate.h"

#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>

#include "weft/base/text.h"

namespace weft {

void price(Plan& plan, const Module& module, const Pricer& pricer) {
  std::map<std::pair<PieceId, Phase>, PieceCost> known;
  for (Node& node : plan.nodes) {
    const auto [at, is_new] = known.try_emplace({node.piece, node.phase});
    if (is_new) at->second = pricer(module.piece(node.piece), node.phase);
    node.flops = at->second.flops;
    node.bytes = at->second.bytes;
  }
}

double total_flops(const Plan& plan) {
  double flops = 0;
  for (const Node& node : plan.nodes) flops += node.flops;
  return flops;
}

ParameterCount count_parameters(const Module& module, std::int64_t experts, std::int64_t chosen,
                                std::int64_t expert_ranks) {
  ParameterCount count;
  bool tied = true;
  for (const ParameterTensor& tensor : module.parameters) tied &= tensor.parts.front().identity.role != Role::head;
  for (const ParameterTensor& tensor : module.parameters) {
    const std::int64_t elements = tensor.shape.elements() * (tensor.expert ? expert_ranks : 1);
    count.all += elements;
    if (tensor.parts.front().identity.role == Role::embedding && !tied) continue;  // a lookup
    count.active += tensor.expert ? elements / experts * chosen : elements;
  }
  return count;
}

std::string to_text(const MachineRates& rates) {
  return fmt::format("{}FLOP/s, {}B/s of memory, {}B/s and {:g} us between ranks, {:g} us a node",
                     human_count(rates.flops), human_count(rates.bytes), human_count(rates.bandwidth),
                     rates.latency * 1e6, rates.node_overhead * 1e6);
}

Timeline estimate_timeline(const Plan& plan, const MemoryPlan& memory, int ranks, const MachineRates& rates) {
  // All ranks run the same plan and nothing tells them apart, so they go in step: one is simulated and drawn for all.
  const std::vector<LaneMarks> waits = lane_waits(plan, memory);
  std::vector<double> end(plan.nodes.size());
  std::array<double, lane_count> lane_free{};
  Timeline timeline;
  timeline.title = "estimate of a step";
  timeline.times = "estimated for " + to_text(rates);
  timeline.ranks = ranks;
  const auto resident = static_cast<double>(memory.resident());
  timeline.memory.assign(static_cast<std::size_t>(ranks), {{0, resident}});
  timeline.reserved = static_cast<double>(memory.total());
  const std::vector<std::int32_t> labels = add_labels(timeline, plan);
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const Node& node = plan.nodes[i];
    double start = lane_free[static_cast<std::size_t>(node.lane)];
    for (std::int32_t mark : waits[i])
      if (mark >= 0) start = std::max(start, end[static_cast<std::size_t>(mark)]);
    double seconds = rates.node_overhead;
    if (node.collectives == 0) {
      seconds += std::max(node.flops / rates.flops, node.bytes / rates.bytes);
    } else {
      for (const NodeCollective& c : plan.collectives_of(node))
        seconds += rates.latency + static_cast<double>(c.bytes) / rates.bandwidth;
    }
    end[i] = start + seconds;
    lane_free[static_cast<std::size_t>(node.lane)] = end[i];
    for (int rank = 0; rank < ranks; ++rank)
      timeline.events.push_back({rank, labels[i], node.micro_batch, start, end[i]});
    if (node.lane == Lane::compute)
      for (auto& curve : timeline.memory) curve.push_back({start, resident + static_cast<double>(memory.live[i])});
  }
  return timeline;
}

}  // namespace weft
