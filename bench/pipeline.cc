// How long the stages of a pipeline wait, compared with the formulas of their orders: on paper (the simulation of the
// plans of all ranks) and on thread ranks over an emulated network. Computing time is emulated too: every pass over a
// stage's chunk sleeps until it has lasted as long as it should, the same on every stage, so that ranks need little of the
// processors. Optimizer and reductions take no time but their own.
//
// The bubble is the step less the computation of a stage. For woven cases also how much of the exchange of tokens is
// hidden behind computation, measured and on paper: on paper it is what the order allows. On
// their network a transfer takes a twentieth of a pass.
//
// A formula takes a backward pass for one piece of work. So weight gradients that have no pass of their own take their time
// before the pass sends its gradient; otherwise stages would wait less than the formulas say.
//
// One line of JSON per case. Fails if a bubble on paper is not within 2 % of its formula (of plans that are not woven).
//
//   ./run bench pipeline [--steps 5] [--micro-batches 8] [--pass-time 20]
#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/comm/local/cluster.h"
#include "weft/device/cpu/device.h"
#include "weft/plan/draw/timeline.h"
#include "weft/plan/rank_classes.h"
#include "weft/plan/simulate/engine.h"
#include "weft/train/flags.h"
#include "weft/train/record.h"
#include "weft/train/session.h"

namespace weft {
namespace {

struct Case {
  const char* pattern = "";
  int stages = 4, experts_over = 1;
  OrderKind order = OrderKind::one_f_one_b;
  bool weave = false;
  PassTimes times = {};  // of a stage, in units of the pass time
  int ranks() const { return stages * experts_over; }
};

struct Settings {
  int micro_batches = 8, steps = 5;
  double pass = 0.02, latency = 50e-6, bandwidth = 1e9;  // seconds, bytes per second
};

SessionOptions options_of(const Case& c, const Settings& settings, World* world) {
  SessionOptions o;
  o.config.pattern = c.pattern;
  o.config.hidden = 32;
  o.config.vocabulary = 64;
  o.config.attention = {.heads = 2, .kv_heads = 2, .head_dim = 16};
  o.config.mlp.ffn = 32;
  // Every token goes to both experts, so that all ranks have the same work.
  o.config.experts.experts = 2;
  o.config.experts.ffn = 32;
  o.config.experts.router.k = 2;
  o.batch = 1;
  o.length = 16;
  o.plan.micro_batches = settings.micro_batches;
  o.plan.order = c.order;
  o.plan.weave = o.plan.delay_weight_gradients = c.weave;
  o.layout =
      Layout::of({.dp = c.experts_over, .pp = c.stages, .ep = c.experts_over}, world ? world->rank() : RankId(0));
  o.ranks.world = world;
  o.ranks.parallel = true;
  return o;
}

// Seconds of every node: the nodes of one pass over a chunk share its time evenly, but of weight gradients the first has all.
std::vector<double> times_of(const StepPlan& step, const Case& c, const Settings& settings) {
  const std::vector<int> chunks = [&] {
    std::vector<int> of_unit(static_cast<std::size_t>(step.module.units));
    for (const Piece& piece : step.module.pieces)
      of_unit[static_cast<std::size_t>(piece.place.unit)] = piece.place.chunk;
    return of_unit;
  }();
  const auto time_of = [&](Phase phase) {
    return phase == Phase::forward           ? c.times.forward
           : phase == Phase::backward        ? c.times.backward
           : phase == Phase::weight_gradient ? c.times.weight_gradients
                                             : 0;
  };
  std::map<std::tuple<int, int, Phase>, std::vector<std::size_t>> passes;
  for (std::size_t i = 0; i < step.plan.nodes.size(); ++i) {
    const Node& node = step.plan.nodes[i];
    if (node.kind != NodeKind::compute || node.micro_batch < 0) continue;
    const int unit = step.plan.place_of(node).unit;
    passes[{chunks[static_cast<std::size_t>(unit)], node.micro_batch, node.phase}].push_back(i);
  }
  std::vector<double> seconds(step.plan.nodes.size());
  for (const auto& [key, nodes] : passes) {
    const Phase phase = std::get<2>(key);
    const std::size_t share = phase == Phase::weight_gradient ? 1 : nodes.size();
    for (std::size_t n = 0; n < share; ++n)
      seconds[nodes[n]] = settings.pass * time_of(phase) / static_cast<double>(step.module.chunks.size() * share);
  }
  return seconds;
}

struct Outcome {
  double step = 0, hidden = 1;  // seconds; share of the exchange
};

Outcome outcome_of(const Timeline& timeline) {
  Outcome outcome;
  outcome.step = range_of(timeline).length();
  const Overlap sum = sum_of(overlaps_of(timeline, Lane::exchange));
  if (sum.communication > 0) outcome.hidden = sum.share_hidden();
  return outcome;
}

Outcome on_paper(const Case& c, const Settings& settings) {
  const LayoutPlans plans(training_step(options_of(c, settings, nullptr)));
  Cluster cluster;
  cluster.node_overhead = 0;
  cluster.within = cluster.between = {.latency = settings.latency, .bandwidth = settings.bandwidth};
  for (const auto& step : plans.steps()) {
    const std::vector<double> seconds = times_of(*step, c, settings);
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      step->plan.nodes[i].flops = seconds[i] * cluster.flops;
      step->plan.nodes[i].bytes = 0;
    }
  }
  return outcome_of(estimate_timeline(plans.ranks(), cluster));
}

MicroBatch random_batch(const SessionOptions& o, std::uint64_t key) {
  MicroBatch b;
  b.batch = o.batch;
  b.length = o.length;
  const auto words = static_cast<std::uint64_t>(o.config.vocabulary);
  for (std::int64_t i = 0; i < o.batch * o.length; ++i) {
    b.tokens.push_back(static_cast<std::int32_t>(random_below(key, static_cast<std::uint64_t>(2 * i), words)));
    b.labels.push_back(static_cast<std::int32_t>(random_below(key, static_cast<std::uint64_t>(2 * i + 1), words)));
  }
  return b;
}

// The step of median length.
Outcome on_threads(const Case& c, const Settings& settings) {
  LocalOptions local;
  local.network = EmulatedNetwork{settings.latency, settings.bandwidth};
  std::vector<Outcome> outcomes;
  LocalCluster(c.ranks(), local).run([&](World& world) {
    CpuDevice device;
    SessionOptions o = options_of(c, settings, &world);
    o.ranks.executor.least_seconds = times_of(plan_step(training_step(o)), c, settings);
    Session session(device, o);
    session.initialise_parameters(1);
    std::vector<MicroBatch> batches;
    for (int m = 0; m < settings.micro_batches; ++m)
      batches.push_back(random_batch(o, static_cast<std::uint64_t>(o.layout.shard_of(m))));
    session.step(batches, 1e-4, 0);
    session.executor()->keep_times(true);
    for (int i = 0; i < settings.steps; ++i) {
      session.step(batches, 1e-4, 0);
      const Timeline timeline = record_timeline(session, "step");
      if (world.rank().value == 0) outcomes.push_back(outcome_of(timeline));
    }
  });
  std::sort(outcomes.begin(), outcomes.end(), [](const Outcome& a, const Outcome& b) { return a.step < b.step; });
  return outcomes[outcomes.size() / 2];
}

void report(const Case& c, Settings settings) {
  if (c.weave) settings.latency = settings.pass / 20;
  const SessionOptions o = options_of(c, settings, nullptr);
  PipelineStage stage = pipeline_stage(plan_step(training_step(o)).module, o.plan, false);
  const double pass = settings.pass;
  const PassTimes times{pass * c.times.forward, pass * c.times.backward, pass * c.times.weight_gradients};
  const double work = settings.micro_batches * (times.forward + times.backward + times.weight_gradients),
               formula = bubble_of(stage, times);
  const Outcome paper = on_paper(c, settings), threads = on_threads(c, settings);
  fmt::print(
      "{{\"bench\": \"pipeline\", \"order\": \"{}\", \"woven\": {}, \"pattern\": \"{}\", \"stages\": {}, \"chunks\": "
      "{}, "
      "\"ep\": {}, \"micro_batches\": {}, \"times\": [{}, {}, {}], \"work_ms\": {:.1f}, \"formula_ms\": {:.1f}, "
      "\"paper_ms\": {:.1f}, \"threads_ms\": {:.1f}, \"paper_to_formula\": {:.3f}, \"threads_to_formula\": {:.3f}, "
      "\"hidden_paper\": {:.3f}, \"hidden_threads\": {:.3f}}}\n",
      name_of(stage.kind), c.weave, c.pattern, c.stages, stage.chunks, c.experts_over, settings.micro_batches,
      c.times.forward, c.times.backward, c.times.weight_gradients, work * 1e3, formula * 1e3, (paper.step - work) * 1e3,
      (threads.step - work) * 1e3, (paper.step - work) / formula, (threads.step - work) / formula, paper.hidden,
      threads.hidden);
  std::fflush(stdout);
  if (!c.weave && std::abs(paper.step - work - formula) > 0.02 * formula)
    throw RunError("the bubble on paper, {:.2f} ms, does not fit the formula's {:.2f} ms", (paper.step - work) * 1e3,
                   formula * 1e3);
}

int run(const std::vector<std::string>& words) {
  Settings settings;
  std::int64_t micro_batches = 8, steps = 5;
  double pass_milliseconds = 20;
  FlagTable flags("bench_pipeline", "Measures how long the stages of a pipeline wait.");
  flags.add("--pass-time", pass_milliseconds, "MS", "That a forward pass over a stage takes.");
  flags.add("--micro-batches", micro_batches, "N", "Of a step, a multiple of 4.").at_least(4);
  flags.add("--steps", steps, "N", "Timed steps.").at_least(1);
  flags.apply(flags.scan(words));
  if (flags.help_wanted()) {
    fmt::print("{}", flags.help());
    return 0;
  }
  settings.micro_batches = static_cast<int>(micro_batches);
  settings.steps = static_cast<int>(steps);
  settings.pass = pass_milliseconds * 1e-3;
  using enum OrderKind;
  report({.pattern = "*-|*-|*-|*-"}, settings);
  report({.pattern = "*-|*-|*-|*-|*-|*-|*-|*-", .order = interleaved}, settings);
  report({.pattern = "*-|*-|*-|*-", .order = zero_bubble}, settings);
  report({.pattern = "*-|*-|*-|*-", .order = zero_bubble, .times = {1, 1.2, 0.8}}, settings);
  for (const OrderKind order : {one_f_one_b, zero_bubble})
    report({.pattern = "[*E]|[*E]", .stages = 2, .experts_over = 2, .order = order, .weave = true}, settings);
  report({.pattern = "[*E]|[*E]|[*E]|[*E]", .stages = 2, .experts_over = 2, .order = interleaved, .weave = true},
         settings);
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::run({argv + 1, argv + argc}); }
