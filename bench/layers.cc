// One layer of each kind, forward, backward and weight gradients, on one core: time per token by sequence length, and
// FLOP/s compared with a product of 2048^3 in the same process. FLOPs are those of docs/numerics.md. Prints one JSON
// line per case.
//
//   ./run bench layers --kinds 'M,G,*,+,E' --lengths 1024,2048,4096,8192,16384
#include <algorithm>
#include <chrono>
#include <cstdlib>

#include <fmt/format.h>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/base/text.h"
#include "weft/device/cpu/device.h"
#include "weft/device/null/device.h"
#include "weft/device/operations.h"
#include "weft/execute/dry_run.h"
#include "weft/train/flags.h"
#include "weft/train/session.h"

namespace weft {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// FLOP/s of an n^3 product of floats, best of eight.
double gemm_rate(CpuDevice& device, int threads, std::int64_t n = 2048) {
  const auto stream = device.make_stream(threads);
  const std::size_t bytes = static_cast<std::size_t>(n * n) * 4;
  const auto memory = device.allocate(3 * bytes);
  std::vector<double> numbers(static_cast<std::size_t>(n * n));
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = random_normal(1, i);
  const std::vector<std::byte> packed = pack(numbers, DType::f32);
  const Tensor a(memory->data(), DType::f32, {n, n}), b(memory->data() + bytes, DType::f32, {n, n}),
      c(memory->data() + 2 * bytes, DType::f32, {n, n});
  device.copy_in(*stream, a.data, packed.data(), bytes);
  device.copy_in(*stream, b.data, packed.data(), bytes);
  double best = 1e9;
  for (int i = 0; i < 9; ++i) {
    const double begin = now();
    device.operations().matmul(*stream, {a, b, c});
    if (i >= 1) best = std::min(best, now() - begin);
  }
  return 2.0 * static_cast<double>(n * n * n) / best;
}

ModelConfig config_of(const std::string& kind, std::int64_t hidden) {
  ModelConfig c;
  c.pattern = kind;
  c.hidden = hidden;
  c.vocabulary = 64;  // so that embedding and head are negligible
  c.attention = {.heads = hidden / 64, .kv_heads = hidden / 64, .head_dim = 64};
  c.latent_attention = {.heads = hidden / 128,
                        .q_rank = 3 * hidden / 4,
                        .kv_rank = hidden / 2,
                        .head_dim = 128,
                        .rotary_dim = 64,
                        .value_dim = 128};
  c.latent_attention.indexer = {.heads = 4, .dim = 64, .topk = 512};
  c.mlp.ffn = 4 * hidden;
  c.experts.experts = 16;
  c.experts.ffn = hidden / 2;
  c.experts.router.k = 4;
  c.mamba = {.heads = hidden / 32, .head_dim = 64, .groups = 8, .state = 128};
  c.delta_net = {.heads = hidden / 64, .key_heads = hidden / 128, .head_dim = 128, .key_dim = 128};
  return c;
}

struct Measured {
  double forward = 0, backward = 0, weights = 0;  // seconds
  double flops = 0;
  double total() const { return forward + backward + weights; }
};

// The layer's own nodes, each with its best time in `repeats` runs of the whole plan.
Measured measure(Session& session, int repeats) {
  const PreparedPlan& prepared = session.plan();
  const Plan& plan = prepared.plan();
  std::vector<double> best(plan.nodes.size(), 1e9);
  for (int i = 0; i < repeats; ++i)
    for (std::size_t n = 0; n < plan.nodes.size(); ++n) {
      const double begin = now();
      prepared.run_node(NodeId(static_cast<std::int64_t>(n)), session.stream());
      best[n] = std::min(best[n], now() - begin);
    }
  Measured m;
  const NullDevice null;
  for (std::size_t n = 0; n < plan.nodes.size(); ++n) {
    const Node& node = plan.nodes[n];
    if (!plan.place_of(node).layer.starts_with("main.")) continue;
    (node.phase == Phase::forward ? m.forward : node.phase == Phase::backward ? m.backward : m.weights) += best[n];
    NullStream counted;
    dry_run(session.module(), plan, node, null.operations(), counted);
    m.flops += counted.total().flops;
  }
  return m;
}

void run_case(const std::string& kind, std::int64_t length, std::int64_t hidden, int threads, int repeats) {
  CpuDevice device;
  SessionOptions o;
  o.config = config_of(kind, hidden);
  o.length = length;
  o.threads = threads;
  o.plan.kind = PlanKind::gradients;
  Session session(device, o);
  session.initialise_parameters(1);
  MicroBatch b;
  b.batch = 1;
  b.length = length;
  for (std::int64_t i = 0; i < length; ++i) {
    b.tokens.push_back(static_cast<std::int32_t>(random_below(2, static_cast<std::uint64_t>(i), 64)));
    b.labels.push_back(static_cast<std::int32_t>(random_below(3, static_cast<std::uint64_t>(i), 64)));
  }
  session.gradients(std::span(&b, 1));
  const double before = gemm_rate(device, threads);
  const Measured m = measure(session, repeats);
  const double peak = std::max(before, gemm_rate(device, threads));
  const double tokens = static_cast<double>(length);
  fmt::print(
      "{{\"bench\": \"layers\", \"kind\": \"{}\", \"length\": {}, \"hidden\": {}, \"threads\": {}, \"us_per_token\": "
      "{:.2f}, \"forward_us\": {:.2f}, \"backward_us\": {:.2f}, \"weights_us\": {:.2f}, \"kflop_per_token\": {:.0f}, "
      "\"gflops\": {:.1f}, \"sgemm_gflops\": {:.1f}, \"ratio\": {:.3f}, \"memory_bytes_per_token\": {:.0f}}}\n",
      kind, length, hidden, threads, 1e6 * m.total() / tokens, 1e6 * m.forward / tokens, 1e6 * m.backward / tokens,
      1e6 * m.weights / tokens, m.flops / tokens / 1e3, m.flops / m.total() / 1e9, peak / 1e9,
      m.flops / m.total() / peak, static_cast<double>(session.plan().memory().arena) / tokens);
  std::fflush(stdout);
}

int run(std::vector<std::string> words) {
  std::string kinds = "M,G,*,+,E,-", lengths = "1024,2048,4096,8192,16384";
  std::int64_t hidden = 1024, threads = 1, repeats = 3;
  FlagTable flags("bench_layers", "Times one layer of each kind.");
  flags.add("--kinds", kinds, "LIST", "Symbols of the pattern language.");
  flags.add("--lengths", lengths, "LIST", "Tokens of the sequence.");
  flags.add("--hidden", hidden, "N", "Width; a multiple of 128.").at_least(128);
  flags.add("--threads", threads, "N", "Threads.").at_least(1);
  flags.add("--repeats", repeats, "N", "Runs; the best time of every node counts.").at_least(1);
  flags.apply(flags.scan(words));
  if (flags.help_wanted()) {
    fmt::print("{}", flags.help());
    return 0;
  }
  for (const std::string& kind : split(kinds, ','))
    for (const std::string& length : split(lengths, ','))
      run_case(kind, std::atoll(length.c_str()), hidden, static_cast<int>(threads), static_cast<int>(repeats));
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::run({argv + 1, argv + argc}); }
