#include "weft/train/stage_report.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "weft/base/text.h"
#include "weft/plan/rank_classes.h"
#include "weft/plan/simulate/engine.h"
#include "weft/plan/simulate/traffic.h"

namespace weft {

namespace {

// The same, but not woven: how many bytes of activations its worst stage has.
std::int64_t activations_unwoven(const StepOptions& options) {
  StepOptions plain = options;
  plain.plan.weave = plain.plan.early_attention_backward = false;
  std::int64_t most = 0;
  const LayoutPlans plans(plain);
  for (const auto& step : plans.steps()) most = std::max(most, step->memory.activations);
  return most;
}

}  // namespace

StageReport stage_report(const LayoutPlans& plans, const StepOptions& options, const Cluster& cluster) {
  StageReport report;
  const Layout& layout = plans.steps().front()->module.layout;
  if (layout.stage_count() == 1) return report;
  const RankPlans ranks = plans.ranks();
  const RankClasses classes(ranks);
  const Simulation run = simulate(ranks, classes, &cluster);
  report.step = run.seconds;
  PassTimes times{0, 0, 0};  // of the average stage and micro-batch
  std::int64_t most = 0;
  for (const RankId rank : layout.members_of(layout.stages())) {
    const StepPlan& step = plans.step_of(rank);
    const ClassTimes& of_rank = run.classes[static_cast<std::size_t>(classes.class_of(rank))];
    StageReport::Stage& stage = report.stages.emplace_back();
    for (const Chunk& chunk : step.module.chunks) stage.segments.push_back(chunk.segment);
    const MemoryPlan& memory = step.memory;
    stage.parameters_bytes = memory.weights + memory.gradients + memory.states;
    stage.memory = memory.total();
    stage.activations = memory.activations;
    stage.sent = traffic_of(step.plan, layout.seen_from(rank));
    most = std::max(most, stage.activations);
    for (std::size_t i = 0; i < step.plan.nodes.size(); ++i) {
      const Node& node = step.plan.nodes[i];
      if (node.lane != Lane::compute) continue;
      const double seconds = of_rank.end[i] - of_rank.start[i];
      stage.busy += seconds;
      if (node.phase == Phase::forward) times.forward += seconds;
      if (node.phase == Phase::backward) times.backward += seconds;
      if (node.phase == Phase::weight_gradient) times.weight_gradients += seconds;
    }
    report.bubble += 1 - stage.busy / report.step;
  }
  const double share = 1.0 / static_cast<double>(report.stages.size());
  report.bubble *= share;
  for (double* time : {&times.forward, &times.backward, &times.weight_gradients})
    *time *= share / options.plan.micro_batches;
  PipelineStage stage = pipeline_stage(plans.steps().front()->module, options.plan, false);
  report.order = stage.kind != OrderKind::automatic ? stage.kind
                 : stage.chunks > 1                 ? OrderKind::interleaved
                                                    : OrderKind::one_f_one_b;
  const double bubble = bubble_of(stage, times),
               work = options.plan.micro_batches * (times.forward + times.backward + times.weight_gradients);
  report.formula = bubble / (bubble + work);
  if (options.plan.weave) report.woven = std::max<std::int64_t>(0, most - activations_unwoven(options));
  return report;
}

std::string to_text(const StageReport& r) {
  if (r.stages.empty()) return "";
  std::string text = fmt::format(
      "  stages        {} of a step they wait on average, {} by the formula of {}; the lines above are of stage 0\n",
      fmt::format("{:.1f} %", 100 * r.bubble), fmt::format("{:.1f} %", 100 * r.formula), name_of(r.order));
  const auto bytes = [](std::int64_t value) { return human_bytes(static_cast<double>(value)); };
  if (r.woven)
    text +=
        fmt::format("                woven, they keep {} of activations more, for a longer warm-up\n", bytes(*r.woven));
  text += fmt::format("  {:>14}{:>14}{:>14}{:>14}{:>14}  {:<12}  {}\n", "stage", "computes", "memory", "activations",
                      "parameters", "segments", "a rank sends per step, by lane");
  for (std::size_t i = 0; i < r.stages.size(); ++i) {
    const StageReport::Stage& s = r.stages[i];
    std::vector<std::string> segments, sent;
    for (int segment : s.segments) segments.push_back(fmt::format("{}", segment));
    for (std::size_t lane = 0; lane < lane_count; ++lane)
      if (s.sent[lane] > 0)
        sent.push_back(fmt::format("{} {}", name_of(static_cast<Lane>(lane)), human_bytes(s.sent[lane])));
    text += fmt::format("  {:>14}{:>14}{:>14}{:>14}{:>14}  {:<12}  {}\n", i, fmt::format("{:.4g} ms", s.busy * 1e3),
                        bytes(s.memory), bytes(s.activations), bytes(s.parameters_bytes), join(segments, ", "),
                        join(sent, ", "));
  }
  text.pop_back();
  return text;
}

Json to_json(const StageReport& r) {
  Json stages = Json::array();
  for (const StageReport::Stage& s : r.stages) {
    Json sent = Json::object();
    for (std::size_t lane = 0; lane < lane_count; ++lane)
      if (s.sent[lane] > 0) sent[std::string(name_of(static_cast<Lane>(lane)))] = s.sent[lane];
    stages.push_back({{"segments", s.segments},
                      {"compute_seconds", s.busy},
                      {"traffic", sent},
                      {"memory", s.memory},
                      {"activations", s.activations},
                      {"parameters", s.parameters_bytes}});
  }
  Json json = {{"stages", stages}};
  if (r.stages.empty()) return json;
  json["order"] = std::string(name_of(r.order));
  json["bubble_share"] = r.bubble;
  json["bubble_share_by_formula"] = r.formula;
  if (r.woven) json["woven_activations"] = *r.woven;
  return json;
}

}  // namespace weft
