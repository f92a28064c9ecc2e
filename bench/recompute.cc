// What recomputation saves and costs: activations at the peak, and the processor time of a step on one thread, which other
// work on the machine disturbs little. Every setting runs once per round, and its best round counts. Prints one JSON line per
// setting.
//
//   ./run bench recompute --rounds 5
#include <algorithm>
#include <ctime>
#include <memory>

#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/device/cpu/device.h"
#include "weft/train/flags.h"
#include "weft/train/session.h"

namespace weft {
namespace {

double processor_time() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Setting {
  std::string name;
  Recomputation how;
};

std::vector<Setting> settings() {
  using Kind = Recomputation::Kind;
  std::vector<Setting> all{{"none", {}}};
  RecomputeModules every = 0;
  for (int m = 0; m < recompute_module_count; ++m) {
    const auto module = static_cast<RecomputeModule>(m);
    all.push_back({std::string(name_of(module)), {Kind::modules, 1, set_of({module})}});
    every |= set_of({module});
  }
  all.push_back({"all modules", {Kind::modules, 1, every}});
  all.push_back({"full, block 2", {Kind::block, 2}});
  for (const int items : {1, 2, 4}) all.push_back({fmt::format("full, uniform {}", items), {Kind::uniform, items}});
  return all;
}

SessionOptions options_of(const Setting& setting, std::int64_t hidden, std::int64_t length) {
  SessionOptions o;
  ModelConfig& c = o.config;
  c.pattern = "[M+E][G-][+E][M-]";
  c.hidden = hidden;
  c.vocabulary = 512;
  c.latent_attention = {.heads = hidden / 128,
                        .q_rank = 3 * hidden / 4,
                        .kv_rank = hidden / 2,
                        .head_dim = 128,
                        .rotary_dim = 64,
                        .value_dim = 128};
  c.mlp.ffn = 4 * hidden;
  c.experts.experts = 8;
  c.experts.ffn = hidden;
  c.experts.shared_ffn = hidden;
  c.experts.router.k = 2;
  c.mamba = {.heads = hidden / 32, .head_dim = 64, .groups = 1, .state = 64};
  c.delta_net = {.heads = hidden / 64, .key_heads = hidden / 128, .head_dim = 128, .key_dim = 128};
  o.length = length;
  o.threads = 1;
  o.plan.kind = PlanKind::gradients;
  o.plan.recomputation = setting.how;
  return o;
}

int run(const std::vector<std::string>& words) {
  std::int64_t hidden = 256, length = 1024, rounds = 5;
  FlagTable flags("bench_recompute", "Memory and time of recomputation.");
  flags.add("--hidden", hidden, "N", "Width; a multiple of 128.").at_least(128);
  flags.add("--length", length, "N", "Tokens of the micro-batch.").at_least(1);
  flags.add("--rounds", rounds, "N", "Steps of every setting; the best counts.").at_least(1);
  flags.apply(flags.scan(words));
  if (flags.help_wanted()) return fmt::print("{}", flags.help()), 0;
  CpuDevice device;
  MicroBatch batch;
  batch.batch = 1;
  batch.length = length;
  for (std::int64_t i = 0; i < length; ++i) {
    batch.tokens.push_back(static_cast<std::int32_t>(random_below(2, static_cast<std::uint64_t>(i), 512)));
    batch.labels.push_back(static_cast<std::int32_t>(random_below(3, static_cast<std::uint64_t>(i), 512)));
  }
  const std::vector<Setting> all = settings();
  std::vector<std::unique_ptr<Session>> sessions;
  for (const Setting& setting : all) {
    sessions.push_back(std::make_unique<Session>(device, options_of(setting, hidden, length)));
    sessions.back()->initialise_parameters(1);
    sessions.back()->gradients(std::span(&batch, 1));
  }
  std::vector<double> best(all.size(), 1e9);
  for (std::int64_t round = 0; round < rounds; ++round)
    for (std::size_t i = 0; i < all.size(); ++i) {
      const double begin = processor_time();
      sessions[i]->gradients(std::span(&batch, 1));
      best[i] = std::min(best[i], processor_time() - begin);
    }
  const auto activations = [&](std::size_t i) { return sessions[i]->plan().memory().activations; };
  for (std::size_t i = 0; i < all.size(); ++i)
    fmt::print(
        "{{\"bench\": \"recompute\", \"recomputed\": \"{}\", \"activation_bytes\": {}, \"of_none\": {:.3f}, "
        "\"seconds\": {:.4f}, \"time_of_none\": {:.3f}}}\n",
        all[i].name, activations(i), static_cast<double>(activations(i)) / static_cast<double>(activations(0)), best[i],
        best[i] / best[0]);
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  try {
    return weft::run({argv + 1, argv + argc});
  } catch (const weft::UserError& error) {
    fmt::print(stderr, "bench_recompute: {}\n", error.what());
    return 2;
  }
}
