// Whole training steps of a GPT-2-size dense model and of an 8-expert mixture: forward, backward, clipping, AdamW.
// The same work as bench/peers/cpu_train_step.py, which also runs if --peer PYTHON names a Python with torch. Prints
// one JSON line per case; ratios are to a product of 2048^3 in the same dtype and process.
//
//   ./run bench train_step --models dense,moe --dtypes f32,bf16 --threads 1,2 --steps 6 --peer ~/venv/bin/python
#include <algorithm>
#include <chrono>
#include <cstdlib>

#include <fmt/format.h>

#include "weft/base/random.h"
#include "weft/base/text.h"
#include "weft/device/cpu/device.h"
#include "weft/device/null/device.h"
#include "weft/device/operations.h"
#include "weft/execute/dry_run.h"
#include "weft/plan/simulate/estimate.h"
#include "weft/train/flags.h"
#include "weft/train/session.h"

namespace weft {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// FLOP/s of an n^3 product, best of ten.
double gemm_rate(CpuDevice& device, DType dtype, int threads, std::int64_t n = 2048) {
  const auto stream = device.make_stream(threads);
  const auto memory = device.allocate(3 * static_cast<std::size_t>(n * n) * 4);
  const std::size_t bytes = static_cast<std::size_t>(n * n) * size_of(dtype);
  std::vector<double> numbers(static_cast<std::size_t>(n * n));
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = random_normal(1, i);
  const std::vector<std::byte> packed = pack(numbers, dtype);
  const Tensor a(memory->data(), dtype, {n, n}), b(memory->data() + bytes, dtype, {n, n}),
      c(memory->data() + 2 * bytes, DType::f32, {n, n});
  device.copy_in(*stream, a.data, packed.data(), bytes);
  device.copy_in(*stream, b.data, packed.data(), bytes);
  double best = 1e9;
  for (int i = 0; i < 12; ++i) {
    const double begin = now();
    device.operations().matmul(*stream, {a, b, c});
    if (i >= 2) best = std::min(best, now() - begin);
  }
  return 2.0 * static_cast<double>(n * n * n) / best;
}

ModelConfig config_of(bool moe) {
  ModelConfig c;
  c.hidden = 768;
  c.vocabulary = 50304;
  for (int i = 0; i < 12; ++i) c.pattern += moe ? "[*E]" : "[*-]";
  c.attention = {.heads = 12, .kv_heads = 12, .head_dim = 64};
  c.mlp.ffn = 3072;
  c.mlp.activation.kind = ActivationKind::gelu;
  c.experts.experts = 8;
  c.experts.ffn = 1024;
  c.experts.router.k = 2;
  return c;
}

// The peer's count: 6 FLOP per token and matrix parameter, causal attention.
double step_flop(bool moe, double tokens, double length) {
  const double h = 768, mlp = moe ? 2 * 3 * h * 1024 + h * 8 : 2 * h * 3072;
  const double used = 12 * (4 * h * h + mlp) + h * 50304;
  return tokens * (6 * used + 3 * 12 * 4 * h * length / 2);
}

void run_case(const std::string& model, const std::string& dtype_name, int threads, int steps) {
  const bool moe = model == "moe";
  const std::int64_t batch = 4, length = 256;
  CpuDevice device;
  SessionOptions o;
  o.config = config_of(moe);
  o.precision.compute = dtype_name == "bf16" ? DType::bf16 : DType::f32;
  o.batch = batch;
  o.length = length;
  o.threads = threads;
  Session session(device, o);
  session.initialise_parameters(1);
  MicroBatch b;
  b.batch = batch;
  b.length = length;
  for (std::int64_t i = 0; i < batch * length; ++i) {
    b.tokens.push_back(static_cast<std::int32_t>(random_below(2, static_cast<std::uint64_t>(i), 50304)));
    b.labels.push_back(static_cast<std::int32_t>(random_below(3, static_cast<std::uint64_t>(i), 50304)));
  }
  std::vector<double> seconds;
  double first = 0, last = 0;
  for (int i = 0; i < 2 + steps; ++i) {
    const double begin = now();
    last = session.step(std::span(&b, 1), 3e-4, 0.01).loss;
    seconds.push_back(now() - begin);
    if (i == 0) first = last;
  }
  seconds.erase(seconds.begin(), seconds.begin() + 2);
  const double s = median(seconds),
               flops = step_flop(moe, static_cast<double>(batch * length), static_cast<double>(length)) / s;
  const double gemm = gemm_rate(device, o.precision.compute, threads), sgemm = gemm_rate(device, DType::f32, threads);
  fmt::print(
      "{{\"bench\": \"train_step\", \"engine\": \"weft\", \"model\": \"{}\", \"dtype\": \"{}\", \"threads\": {}, "
      "\"ms_per_step\": {:.1f}, "
      "\"tokens_s\": {:.1f}, \"gflops\": {:.1f}, \"gemm_gflops\": {:.1f}, \"sgemm_gflops\": {:.1f}, \"ratio\": {:.3f}, "
      "\"memory_mib\": {:.0f}, \"first_loss\": {:.4f}, \"last_loss\": {:.4f}}}\n",
      model, dtype_name, threads, s * 1e3, static_cast<double>(batch * length) / s, flops / 1e9, gemm / 1e9,
      sgemm / 1e9, flops / gemm, static_cast<double>(session.plan().memory().total()) / (1 << 20), first, last);
  std::fflush(stdout);
}

int run(std::vector<std::string> words) {
  std::string models = "dense,moe", dtypes = "f32,bf16", threads = "1,2", peer;
  std::int64_t steps = 6;
  FlagTable flags("bench_train_step", "Times whole training steps.");
  flags.add("--models", models, "LIST", "dense, moe.");
  flags.add("--dtypes", dtypes, "LIST", "f32, bf16.");
  flags.add("--threads", threads, "LIST", "Numbers of threads.");
  flags.add("--steps", steps, "N", "Timed steps, after two warm-up steps.").at_least(1);
  flags.add("--peer", peer, "PYTHON", "Also runs the PyTorch peer with this Python, eager and compiled.");
  flags.apply(flags.scan(words));
  if (flags.help_wanted()) {
    fmt::print("{}", flags.help());
    return 0;
  }
  for (const std::string& model : split(models, ','))
    for (const std::string& dtype : split(dtypes, ','))
      for (const std::string& count : split(threads, ',')) {
        run_case(model, dtype, std::atoi(count.c_str()), static_cast<int>(steps));
        if (peer.empty()) continue;
        for (const char* compile : {"", " --compile"}) {
          const std::string command =
              fmt::format("{} bench/peers/cpu_train_step.py --model {} --dtype {} --threads {} --steps {}{}", peer,
                          model, dtype, count, steps, compile);
          if (std::system(command.c_str()) != 0) fmt::print("{{\"error\": \"{}\"}}\n", command);
        }
      }
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::run({argv + 1, argv + argc}); }
