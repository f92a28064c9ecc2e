// How much of the expert exchange the woven plan hides: two thread ranks on two cores over an emulated network, on
// which the exchange takes about 40 % of the unwoven step. Prints step times, exchange time, the hidden share (exchange
// intervals that overlap computation, in the median step) and the limit of the schedule: with m micro-batches and no
// pipeline the first forward and the last backward pass have nothing to hide behind, so it is 1 - 1/m.
//
//   ./run bench overlap [--bandwidth 115MB/s] [--micro-batches 8]
//   bench/overlap_mpi.sh [RATE]      the same under mpirun, over a real (shaped) network between two namespaces
#include <algorithm>
#include <chrono>
#include <map>

#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/comm/launch.h"
#include "weft/comm/local/cluster.h"
#include "weft/comm/mpi_world.h"
#include "weft/device/cpu/device.h"
#include "weft/plan/draw/timeline.h"
#include "weft/train/flags.h"
#include "weft/train/record.h"
#include "weft/train/session.h"

namespace weft {
namespace {

struct Measured {
  double step = 0, exchange = 0, compute = 0, hidden = 0;  // seconds, of the median step; of one rank
  std::map<std::string, double> waits;                     // of rank 0's computation, by the node that waited
};

std::map<std::string, double> waits_of(const Timeline& timeline) {
  std::vector<TimelineEvent> compute;
  for (const TimelineEvent& event : timeline.events)
    if (event.rank == 0 && timeline.labels[static_cast<std::size_t>(event.label)].lane == Lane::compute)
      compute.push_back(event);
  std::sort(compute.begin(), compute.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
  std::map<std::string, double> waits;
  for (std::size_t i = 1; i < compute.size(); ++i) {
    const TimelineLabel& label = timeline.labels[static_cast<std::size_t>(compute[i].label)];
    const std::string micro = compute[i].micro_batch < 0 ? "" : compute[i].micro_batch == 0 ? " (first)" : "";
    waits[fmt::format("{} {}{}", name_of(label.phase), label.name.substr(label.name.rfind('.') + 1), micro)] +=
        compute[i].start - compute[i - 1].end;
  }
  return waits;
}

// mpi: this rank's world under mpirun; null: two thread ranks over an emulated network.
Measured measure(const std::string& network, World* mpi, int micro_batches, bool weave, int steps) {
  std::vector<Measured> runs;
  const auto body = [&](World& world) {
    CpuDevice device;
    SessionOptions o;
    o.config.pattern = "[*E][*E][*E][*E]";
    o.config.hidden = 256;
    o.config.vocabulary = 512;
    o.config.attention = {.heads = 4, .kv_heads = 4, .head_dim = 64};
    // Every token goes to both experts, so that both ranks have the same work and neither waits for a slower peer.
    o.config.experts.experts = 2;
    o.config.experts.ffn = 256;
    o.config.experts.router.k = 2;
    o.batch = 2;
    o.length = 256;
    o.plan.micro_batches = micro_batches;
    o.ranks.world = &world;
    o.layout = Layout::of_data_and_experts(2, 2, world.rank());
    o.plan.weave = o.plan.delay_weight_gradients = weave;
    o.ranks.parallel = true;
    Session session(device, o);
    session.initialise_parameters(1);
    std::vector<MicroBatch> batches(static_cast<std::size_t>(micro_batches));
    for (std::size_t m = 0; m < batches.size(); ++m) {
      batches[m].batch = o.batch;
      batches[m].length = o.length;
      for (std::int64_t i = 0; i < o.batch * o.length; ++i) {
        const auto index =
            static_cast<std::uint64_t>(i) + 100000 * (m + 100 * static_cast<std::uint64_t>(world.rank().value));
        batches[m].tokens.push_back(static_cast<std::int32_t>(random_below(1, index, 512)));
        batches[m].labels.push_back(static_cast<std::int32_t>(random_below(2, index, 512)));
      }
    }
    session.step(batches, 1e-4, 0);
    session.executor()->keep_times(true);
    for (int i = 0; i < steps; ++i) {
      session.step(batches, 1e-4, 0);
      const Timeline timeline = record_timeline(session, "step");
      if (world.rank().value != 0) continue;
      const Overlap overlap = sum_of(overlaps_of(timeline, Lane::exchange));
      runs.push_back(
          {overlap.span / 2, overlap.communication / 2, overlap.compute / 2, overlap.hidden / 2, waits_of(timeline)});
    }
  };
  if (mpi) {
    body(*mpi);
  } else {
    LocalOptions options;
    options.network = parse_network(network);
    LocalCluster(2, options).run(body);
  }
  if (runs.empty()) return {};  // only rank 0 has results
  std::sort(runs.begin(), runs.end(), [](const Measured& a, const Measured& b) { return a.step < b.step; });
  return runs[runs.size() / 2];
}

int run(const std::vector<std::string>& words) {
  std::string latency = "100us", bandwidth = "115MB/s";
  std::int64_t micro_batches = 8, steps = 15;
  FlagTable flags("bench_overlap", "Measures how much of the expert exchange is hidden.");
  flags.add("--latency", latency, "TIME", "Of the emulated network.");
  flags.add("--bandwidth", bandwidth, "RATE", "Of the emulated network.");
  flags.add("--micro-batches", micro_batches, "N", "Of a step.").at_least(2);
  flags.add("--steps", steps, "N", "Timed steps.").at_least(1);
  bool waits = false;
  flags.add("--waits", waits, "Also prints the nodes for which the woven computation waited.");
  flags.apply(flags.scan(words));
  if (flags.help_wanted()) {
    fmt::print("{}", flags.help());
    return 0;
  }
  const Launch launch = find_launch(process_environment());
  const std::unique_ptr<World> mpi = launch.size > 1 ? make_mpi_world(launch) : nullptr;
  if (mpi && mpi->size() != 2) throw UserError("this takes two ranks, not {}", mpi->size());
  const std::string network = mpi ? "mpi" : fmt::format("latency={},bandwidth={}", latency, bandwidth);
  const int m = static_cast<int>(micro_batches);
  const Measured plain = measure(network, mpi.get(), m, false, static_cast<int>(steps)),
                 woven = measure(network, mpi.get(), m, true, static_cast<int>(steps));
  if (mpi && mpi->rank().value != 0) return 0;
  const double limit = 1 - 1.0 / m, share = woven.hidden / woven.exchange;
  const double ideal = woven.compute + (1 - limit) * woven.exchange;
  fmt::print(
      "{{\"bench\": \"overlap\", \"network\": \"{}\", \"micro_batches\": {}, \"unwoven_ms\": {:.1f}, \"woven_ms\": "
      "{:.1f}, "
      "\"exchange_ms\": {:.1f}, \"exchange_share_of_unwoven\": {:.3f}, \"unwoven_hidden\": {:.3f}, \"hidden\": {:.3f}, "
      "\"limit\": {:.3f}, "
      "\"of_limit\": {:.3f}, \"compute_ms\": {:.1f}, \"ideal_ms\": {:.1f}, \"over_ideal\": {:.3f}}}\n",
      network, m, plain.step * 1e3, woven.step * 1e3, woven.exchange * 1e3, plain.exchange / plain.step,
      plain.hidden / plain.exchange, share, limit, share / limit, woven.compute * 1e3, ideal * 1e3, woven.step / ideal);
  if (waits)
    for (const auto& [name, seconds] : woven.waits)
      if (seconds > 1e-3) fmt::print("  {:8.1f} ms  {}\n", seconds * 1e3, name);
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::run({argv + 1, argv + argc}); }
