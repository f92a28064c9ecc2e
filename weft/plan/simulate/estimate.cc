#include "weft/plan/simulate/estimate.h"

#include <algorithm>
#include <map>
#include <optional>

#include "weft/base/error.h"
#include "weft/plan/draw/communication.h"
#include "weft/plan/rank_classes.h"
#include "weft/plan/simulate/engine.h"

namespace weft {

void price(Plan& plan, const Module& module, const Pricer& pricer) {
  std::map<std::pair<PlaceId, Phase>, PieceCost> known;
  for (Node& node : plan.nodes) {
    if (node.kind != NodeKind::compute && node.kind != NodeKind::sum_of_squares && node.kind != NodeKind::accumulate)
      continue;
    const auto [at, is_new] = known.try_emplace({node.place, node.phase});
    if (is_new) at->second = pricer(module, plan, node);
    node.flops = at->second.flops;
    node.bytes = at->second.bytes;
  }
}

double total_flops(const Plan& plan) {
  double flops = 0;
  for (const Node& node : plan.nodes)
    if (node.phase != Phase::recompute) flops += node.flops;
  return flops;
}

double recomputed_flops(const Plan& plan) {
  double flops = 0;
  for (const Node& node : plan.nodes)
    if (node.phase == Phase::recompute) flops += node.flops;
  return flops;
}

ParameterCount count_parameters(std::span<const Module* const> stages, std::int64_t experts, std::int64_t chosen,
                                std::int64_t expert_ranks) {
  ParameterCount count;
  bool tied = true;
  for (const Module* stage : stages)
    for (const ParameterTensor& tensor : stage->parameters) tied &= tensor.role != Role::head;
  for (const Module* stage : stages)
    for (const ParameterTensor& tensor : stage->parameters) {
      if (tensor.copy) continue;
      const std::int64_t elements = tensor.parameters * (tensor.expert ? expert_ranks : 1);
      count.all += elements;
      if (tensor.role == Role::embedding && !tied) continue;  // a lookup
      count.active += tensor.expert ? elements / experts * chosen : elements;
    }
  return count;
}

namespace {

Simulation simulate_all(const RankPlans& ranks, const RankClasses& classes, const Cluster& cluster) {
  Simulation run = simulate(ranks, classes, &cluster);
  WEFT_CHECK(run.stuck.empty(), "ranks wait for each other, and none can proceed: rank {} {}",
             run.stuck.front().rank.value, run.stuck.front().what);
  return run;
}

// With a lane given, only that lane counts as communication.
Overlap overlap_of(const Plan& plan, const ClassTimes& times, double span, std::optional<Lane> lane) {
  std::vector<TimeRange> compute, communication;
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    const Lane own = plan.nodes[i].lane;
    if (!lane_communicates(own))
      compute.push_back({times.start[i], times.end[i]});
    else if (counts_as_communication(own, lane))
      communication.push_back({times.start[i], times.end[i]});
  }
  return weft::overlap_of(std::move(compute), std::move(communication), span);
}

void add(Overlap& sum, const Overlap& one, double weight) {
  for (double Overlap::*part : {&Overlap::span, &Overlap::compute, &Overlap::communication, &Overlap::hidden,
                                &Overlap::exposed, &Overlap::idle})
    sum.*part += weight * (one.*part);
}

}  // namespace

Estimate estimate_step(const RankPlans& ranks, const Cluster& cluster) {
  const RankClasses classes(ranks);
  const Simulation run = simulate_all(ranks, classes, cluster);
  Estimate estimate;
  estimate.cluster = cluster;
  estimate.seconds = run.seconds;
  for (std::size_t c = 0; c < classes.count(); ++c) {
    const Plan& plan = *classes.plan_of(c).plan;
    const double share = static_cast<double>(classes.ranks_in(c)) / static_cast<double>(ranks.plan_of.size());
    add(estimate.all, overlap_of(plan, run.classes[c], run.seconds, {}), share);
    add(estimate.exchange, overlap_of(plan, run.classes[c], run.seconds, Lane::exchange), share);
    add(estimate.tensor, overlap_of(plan, run.classes[c], run.seconds, Lane::tensor), share);
    for (std::size_t lane = 0; lane < lane_count; ++lane) estimate.busy[lane] += share * run.classes[c].busy[lane];
  }
  return estimate;
}

Timeline estimate_timeline(const RankPlans& ranks, const Cluster& cluster) {
  const RankClasses classes(ranks);
  const Simulation run = simulate_all(ranks, classes, cluster);
  Timeline timeline;
  timeline.title = "estimate of a step";
  timeline.times = "estimated for " + to_text(cluster);
  timeline.ranks = static_cast<int>(ranks.plan_of.size());
  timeline.memory.resize(ranks.plan_of.size());
  std::vector<std::vector<std::int32_t>> labels;  // by plan, by node
  std::size_t events = 0;
  for (const RankPlans::Entry& entry : ranks.plans) labels.push_back(add_labels(timeline, *entry.plan));
  for (std::int32_t plan : ranks.plan_of) events += labels[static_cast<std::size_t>(plan)].size();
  timeline.events.reserve(events);
  for (std::size_t r = 0; r < ranks.plan_of.size(); ++r) {
    const auto c = static_cast<std::size_t>(classes.class_of(RankId(static_cast<std::int64_t>(r))));
    const auto& [plan, memory] = classes.plan_of(c);
    const ClassTimes& times = run.classes[c];
    for (std::size_t i = 0; i < plan->nodes.size(); ++i)
      timeline.events.push_back({static_cast<std::int32_t>(r),
                                 labels[static_cast<std::size_t>(classes.plan_index(c))][i], plan->nodes[i].micro_batch,
                                 times.start[i], times.end[i]});
    if (!memory) continue;
    const auto resident = static_cast<double>(memory->resident());
    timeline.reserved = std::max(timeline.reserved, static_cast<double>(memory->total()));
    timeline.memory[r] = {{0, resident}};
    for (std::size_t i = 0; i < plan->nodes.size(); ++i)
      if (plan->nodes[i].lane == Lane::compute)
        timeline.memory[r].push_back({times.start[i], resident + static_cast<double>(memory->live[i])});
  }
  return timeline;
}

}  // namespace weft
