// How much of the gathers and reductions of divided parameters the plan hides, compared with what it allows. Four thread
// ranks (ep 2) over an emulated network, on which gathers and reductions take about 30 % of the plain step. Computing
// time is emulated too: every node sleeps until it has lasted as long as the estimate says, so that ranks need little of
// the processors and the measured step shows the plan and the executor alone.
//
// "What the plan allows" is the share of gather and reduce time beside computation if every node took the time that is
// emulated and nothing else (one_link.h): lanes in the order of the plan, waits and reuse of memory as executors have
// them, one link for all lanes. What a run loses beyond it are threads that wake up late, copies and sums on processors,
// and nodes that computed longer than they should.
//
// One line of JSON per case. Fails if two plans of a strategy, plain or woven, by piece, by unit or double-buffered,
// gather or reduce different numbers of bytes.
//
//   ./run bench sharding [--steps 9] [--micro-batches 4] [--step-time 800]
#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include <fmt/format.h>

#include "bench/one_link.h"
#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/comm/local/cluster.h"
#include "weft/device/cpu/device.h"
#include "weft/device/null/device.h"
#include "weft/execute/dry_run.h"
#include "weft/plan/draw/timeline.h"
#include "weft/plan/simulate/traffic.h"
#include "weft/train/flags.h"
#include "weft/train/record.h"
#include "weft/train/session.h"

namespace weft {
namespace {

constexpr int rank_count = 4;

struct Case {
  ShardingStrategy sharding = ShardingStrategy::optim_grads_params;
  bool weave = false, by_piece = true, two_buffers = false;
  std::string order() const { return weave ? "woven" : "plain"; }
  std::string gathers() const {
    if (sharding == ShardingStrategy::no_shard) return "none";
    return fmt::format("by {}{}", by_piece ? "piece" : "unit", two_buffers ? ", double-buffered" : "");
  }
};

SessionOptions options_of(const Case& c, int micro_batches, World* world) {
  SessionOptions o;
  o.config.pattern = "[*E][*E][*E][*E][*E][*E][*E][*E]";
  o.config.hidden = 64;
  o.config.vocabulary = 256;
  o.config.attention = {.heads = 2, .kv_heads = 2, .head_dim = 32};
  // Every token goes to both experts, so that all ranks have the same work.
  o.config.experts.experts = 2;
  o.config.experts.ffn = 128;
  o.config.experts.router.k = 2;
  o.batch = 1;
  o.length = 32;
  o.plan.micro_batches = micro_batches;
  o.plan.weave = o.plan.delay_weight_gradients = c.weave;
  o.plan.gather_by_piece = c.by_piece;
  o.plan.two_buffers = c.two_buffers;
  o.sharding = c.sharding;
  o.layout = Layout::of({.dp = rank_count, .ep = 2}, world ? world->rank() : RankId(0));
  o.ranks.world = world;
  o.ranks.parallel = true;
  return o;
}

StepPlan priced_step(const Case& c, int micro_batches) {
  NullDevice device;
  NullStream stream;
  return plan_step(training_step(options_of(c, micro_batches, nullptr)),
                   [&](const Module& module, const Plan& plan, const Node& node) {
                     stream.reset();
                     dry_run(module, plan, node, device.operations(), stream);
                     return PieceCost{stream.total().flops, stream.total().bytes};
                   });
}

// A cluster that computes this step in `seconds`.
Cluster cluster_for(const StepPlan& step, double seconds, double latency) {
  Cluster cluster;
  cluster.node_overhead = 0;
  cluster.bytes = 10 * cluster.flops;  // arithmetic takes the time, as with micro-batches of many tokens
  double computing = 0;
  for (const Node& node : step.plan.nodes)
    if (!lane_communicates(node.lane)) computing += seconds_of(node, cluster);
  cluster.flops *= computing / seconds;
  cluster.bytes *= computing / seconds;
  cluster.within.latency = cluster.between.latency = latency;
  return cluster;
}

// How long a rank communicates in a step, on average, and how much of that is beside no computation.
struct Shares {
  double step = 0, compute = 0;
  double sharding = 0, exposed = 0;  // of the lanes gather and reduce
  double all_exposed = 0;            // of all lanes
  double hidden() const { return sharding > 0 ? 1 - exposed / sharding : 1; }
};

Shares shares_of(const Timeline& timeline) {
  Shares shares;
  const double span = range_of(timeline).length();
  for (int rank = 0; rank < timeline.ranks; ++rank) {
    std::vector<TimeRange> compute, sharding, all;
    for (const TimelineEvent& e : timeline.events) {
      if (e.rank != rank) continue;
      const Lane lane = timeline.labels[static_cast<std::size_t>(e.label)].lane;
      (lane_communicates(lane) ? all : compute).push_back({e.start, e.end});
      if (lane == Lane::gather || lane == Lane::reduce) sharding.push_back({e.start, e.end});
    }
    const Overlap of_sharding = overlap_of(compute, sharding, span), of_all = overlap_of(compute, all, span);
    shares.step += span / timeline.ranks;
    shares.compute += of_sharding.compute / timeline.ranks;
    shares.sharding += of_sharding.communication / timeline.ranks;
    shares.exposed += of_sharding.exposed / timeline.ranks;
    shares.all_exposed += of_all.exposed / timeline.ranks;
  }
  return shares;
}

// Seconds that rank 0's computation does not run beside these nodes of gather and reduce, by name.
void print_exposed(const Timeline& timeline, const char* title) {
  std::vector<TimeRange> compute;
  for (const TimelineEvent& e : timeline.events)
    if (e.rank == 0 && !lane_communicates(timeline.labels[static_cast<std::size_t>(e.label)].lane))
      compute.push_back({e.start, e.end});
  std::map<std::string, double> exposed;
  for (const TimelineEvent& e : timeline.events) {
    const TimelineLabel& label = timeline.labels[static_cast<std::size_t>(e.label)];
    if (e.rank == 0 && (label.lane == Lane::gather || label.lane == Lane::reduce))
      exposed[fmt::format("{} {}@{}", name_of(label.phase), label.name, e.micro_batch)] +=
          overlap_of(compute, {{e.start, e.end}}, 0).exposed;
  }
  fmt::print("  {}, not beside computation:\n", title);
  for (const auto& [name, seconds] : exposed)
    if (seconds > 5e-4) fmt::print("  {:8.2f} ms  {}\n", seconds * 1e3, name);
}

// The bandwidth on which gathers and reductions take `share` of the step as it is estimated.
double bandwidth_for(const StepPlan& step, Cluster cluster, double share) {
  double low = 1e3, high = 1e12;
  while (high / low > 1.001) {
    const double middle = std::sqrt(low * high);
    cluster.within.bandwidth = cluster.between.bandwidth = middle;
    const Shares estimate = shares_of(replay_over_one_link(step, cluster));
    (estimate.sharding > share * estimate.step ? low : high) = middle;
  }
  return high;
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

struct Measured {
  Shares shares;
  Timeline timeline;
};

// Of all timed steps, from the one that hides the smallest share on.
std::vector<Measured> measure(const Case& c, int micro_batches, const StepPlan& step, const Cluster& cluster,
                              int steps) {
  std::vector<double> least(step.plan.nodes.size());
  for (std::size_t i = 0; i < least.size(); ++i)
    if (const Node& node = step.plan.nodes[i]; node.collectives == 0) least[i] = seconds_of(node, cluster);
  LocalOptions local;
  local.network = EmulatedNetwork{cluster.within.latency, cluster.within.bandwidth};
  std::vector<Measured> runs;
  LocalCluster(rank_count, local).run([&](World& world) {
    CpuDevice device;
    SessionOptions o = options_of(c, micro_batches, &world);
    o.ranks.executor.least_seconds = least;
    Session session(device, o);
    session.initialise_parameters(1);
    std::vector<MicroBatch> batches;
    for (int m = 0; m < micro_batches; ++m)
      batches.push_back(random_batch(o, static_cast<std::uint64_t>(m * rank_count) + world.rank().index()));
    session.step(batches, 1e-4, 0);
    session.executor()->keep_times(true);
    for (int i = 0; i < steps; ++i) {
      session.step(batches, 1e-4, 0);
      Timeline timeline = record_timeline(session, "step");
      if (world.rank().value == 0) runs.push_back({shares_of(timeline), std::move(timeline)});
    }
  });
  std::sort(runs.begin(), runs.end(),
            [](const Measured& a, const Measured& b) { return a.shares.hidden() < b.shares.hidden(); });
  return runs;
}

struct Settings {
  int micro_batches = 4, steps = 9;
  bool nodes = false;
};

void report(const Case& c, const Settings& settings, const StepPlan& step, const Cluster& cluster) {
  const Timeline planned = replay_over_one_link(step, cluster);
  const Shares allowed = shares_of(planned);
  const std::vector<Measured> runs = measure(c, settings.micro_batches, step, cluster, settings.steps);
  const Shares& median = runs[runs.size() / 2].shares;
  const auto sent = traffic_of(step.plan, step.module.layout);
  const auto megabytes = [&](Lane lane) { return sent[static_cast<std::size_t>(lane)] / 1e6; };
  const auto of_allowed = [&](const Shares& s) { return s.hidden() / allowed.hidden(); };
  fmt::print(
      "{{\"bench\": \"sharding\", \"strategy\": \"{}\", \"order\": \"{}\", \"gathers\": \"{}\", \"bandwidth_mb\": "
      "{:.2f}, \"gather_mb\": {:.3f}, \"reduce_mb\": {:.3f}, \"exchange_mb\": {:.3f}, \"step_ms\": {:.1f}, "
      "\"step_planned_ms\": {:.1f}, \"compute_ms\": {:.1f}, \"compute_planned_ms\": {:.1f}, \"share_of_step\": {:.3f}, "
      "\"hidden\": {:.3f}, \"allowed\": {:.3f}, \"of_allowed\": {:.3f}, \"of_allowed_worst\": {:.3f}, "
      "\"of_allowed_best\": {:.3f}, \"estimated\": {:.3f}, \"exposed_ms\": {:.1f}, \"exposed_planned_ms\": {:.1f}, "
      "\"all_exposed_ms\": "
      "{:.1f}, \"all_exposed_planned_ms\": {:.1f}}}\n",
      name_of(c.sharding), c.order(), c.gathers(), cluster.within.bandwidth / 1e6, megabytes(Lane::gather),
      megabytes(Lane::reduce), megabytes(Lane::exchange), median.step * 1e3, allowed.step * 1e3, median.compute * 1e3,
      allowed.compute * 1e3, median.sharding / median.step, median.hidden(), allowed.hidden(), of_allowed(median),
      of_allowed(runs.front().shares), of_allowed(runs.back().shares),
      shares_of(estimate_timeline(step.ranks(), cluster)).hidden(), median.exposed * 1e3, allowed.exposed * 1e3,
      median.all_exposed * 1e3, allowed.all_exposed * 1e3);
  if (settings.nodes) {
    print_exposed(planned, "planned");
    print_exposed(runs[runs.size() / 2].timeline, "measured");
  }
  std::fflush(stdout);
}

// How `strategy` is run: plain and woven, with every granularity of its gathers.
std::vector<Case> cases_of(ShardingStrategy strategy) {
  std::vector<Case> cases;
  for (const bool weave : {false, true}) {
    cases.push_back({strategy, weave});
    if (strategy != ShardingStrategy::optim_grads_params) continue;
    cases.push_back({strategy, weave, false});
    cases.push_back({strategy, weave, false, true});
  }
  return cases;
}

void require_same_traffic(const StepPlan& one, const StepPlan& other, const Case& c) {
  const auto a = traffic_of(one.plan, one.module.layout), b = traffic_of(other.plan, other.module.layout);
  for (const Lane lane : {Lane::gather, Lane::reduce})
    WEFT_CHECK(a[static_cast<std::size_t>(lane)] == b[static_cast<std::size_t>(lane)],
               "{}, {}, {}: {} bytes on lane {}, not {} as in the plain plan", name_of(c.sharding), c.order(),
               c.gathers(), b[static_cast<std::size_t>(lane)], name_of(lane), a[static_cast<std::size_t>(lane)]);
}

int run(const std::vector<std::string>& words) {
  double share = 0.3, step_milliseconds = 800, latency_microseconds = 50;
  std::int64_t micro_batches = 4, steps = 9;
  Settings settings;
  FlagTable flags("bench_sharding", "Measures how much of gathers and reductions is hidden.");
  flags.add("--share", share, "X", "Of the plain step, that gathers and reductions take.");
  flags.add("--step-time", step_milliseconds, "MS", "That a step computes.");
  flags.add("--latency", latency_microseconds, "US", "Of the emulated network.");
  flags.add("--micro-batches", micro_batches, "N", "Of a step.").at_least(2);
  flags.add("--steps", steps, "N", "Timed steps.").at_least(1);
  flags.add("--nodes", settings.nodes, "Also prints the nodes that are not hidden.");
  flags.apply(flags.scan(words));
  if (flags.help_wanted()) {
    fmt::print("{}", flags.help());
    return 0;
  }
  settings.micro_batches = static_cast<int>(micro_batches);
  settings.steps = static_cast<int>(steps);
  const auto step_of = [&](const Case& c) { return priced_step(c, settings.micro_batches); };
  for (const ShardingStrategy strategy :
       {ShardingStrategy::optim_grads_params, ShardingStrategy::optim_grads, ShardingStrategy::optim}) {
    const StepPlan plain = step_of({strategy});
    Cluster cluster = cluster_for(plain, step_milliseconds * 1e-3, latency_microseconds * 1e-6);
    cluster.within.bandwidth = cluster.between.bandwidth = bandwidth_for(plain, cluster, share);
    for (const Case& c : cases_of(strategy)) {
      const StepPlan step = step_of(c);
      require_same_traffic(plain, step, c);
      report(c, settings, step, cluster);
    }
    const Case alone{ShardingStrategy::no_shard, true};  // on the same network
    report(alone, settings, step_of(alone), cluster);
  }
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::run({argv + 1, argv + argc}); }
